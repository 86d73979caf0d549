"""Servers that leave their gateway before they stop, and come back when they are verified: on two simulated Sparks."""

import http.client
import json
import re
import shutil
import time
from collections.abc import Iterator

import docker
import pytest

from sparkwright.health.judging.observation import Limits
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from tests.e2e.test_bench import SMALL
from tests.e2e.two_hosts import HOSTS, MODEL, TwoHostProject, two_host_project
from tests.gateway.steady import SteadyClients

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHostProject]:
    with two_host_project() as value:
        yield value


@pytest.fixture(autouse=True)
def both_up(two: TwoHostProject) -> None:
    two.wait(side1="up", side2="up")


def test_a_rolling_restart_fails_no_request_and_cuts_no_stream(two: TwoHostProject) -> None:
    steady = SteadyClients(two.gateway, MODEL)
    with steady.running():
        steady.wait_for_answers(20)
        result = two.run("restart", "--host", "box", "--json", timeout_s=300)
        steady.wait_for_answers(20)
    assert result.code in (0, 4), result.out[-3000:]
    assert not steady.wrong
    assert two.states() == {"side1": "up", "side2": "up"}


def test_a_canary_that_fails_is_back_and_no_client_saw_it(two: TwoHostProject) -> None:
    """It is found wanting after it started: what replaces it is the server of before."""
    recipe = two.root / f"recipes/{MODEL}.yml"
    text = recipe.read_text()
    recipe.write_text(
        re.sub(r"max-num-seqs: \d+", "max-num-seqs: 4", re.sub(r"tok_per_s: .*", "tok_per_s: 9000", text))
    )
    steady = SteadyClients(two.gateway, MODEL)
    try:
        with steady.running():
            steady.wait_for_answers(20)
            result = two.run("deploy", "--host", "box", "--canary", "1", "--json", timeout_s=300)
            steady.wait_for_answers(20)
    finally:
        recipe.write_text(text)
    assert result.code == 1, result.out[-3000:]
    assert not steady.wrong
    assert two.states() == {"side1": "up", "side2": "up"}
    assert two.run("deploy", "--host", "box", "--check", timeout_s=300).code == 0


def test_the_arms_of_a_measurement_serve_no_client(two: TwoHostProject) -> None:
    """One that is slow, or is stopped in the middle, is nothing for them; afterwards the server is back."""
    steady = SteadyClients(two.gateway, MODEL)
    with steady.running():
        steady.wait_for_answers(20)
        result = two.run(
            "bench.ab", "--host", HOSTS[1], "--flag", "chunked-prefill", "--name", "arms", *SMALL, timeout_s=300
        )
        steady.wait_for_answers(20)
    assert result.code in (0, 4), result.out[-3000:]
    assert not steady.wrong
    assert two.states() == {"side1": "up", "side2": "up"}


def restart_killed_before(two: TwoHostProject, task: str) -> None:
    """A restart of the second host whose runner is killed before this task."""
    playbooks = {path: path.read_text() for path in (two.root / "playbooks").rglob("*.yml")}
    two.before(task, "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
    try:
        two.run("restart", "--host", HOSTS[1], timeout_s=300)
    finally:
        for path, text in playbooks.items():
            path.write_text(text)
    assert two.states()[HOSTS[1]] != "up"


def test_a_health_check_returns_what_a_killed_run_left_drained(two: TwoHostProject) -> None:
    """With no laptop: the server was never stopped, and is well."""
    restart_killed_before(two, "Stop the server")
    machine = Machine.from_environment(control.up(two.sandbox / "hosts" / HOSTS[1]))
    notes = list[str]()
    context = RunContext(
        machine, StateFolder.in_home(machine.home), "run-1", lambda value: notes.append(value.get("text", ""))
    )
    build_check(context, Settings(host=HOSTS[1]), scheduled=True).run()
    assert "returned to the gateway box." in notes
    assert two.states()[HOSTS[1]] == "up"


def test_a_health_check_that_heals_drains_the_server_first_and_returns_it(two: TwoHostProject) -> None:
    """With no laptop, by the plan that the deploy left."""
    simulated = two.sandbox / "hosts" / HOSTS[1]
    machine = Machine.from_environment(control.up(simulated))
    state = StateFolder.in_home(machine.home)
    control.set_fault(simulated, "wedge")
    try:
        for later_s in (0, 300, 600):
            settings = Settings(host=HOSTS[1], heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))
            context = RunContext(machine, state, "run-1", lambda value: None)
            record = build_check(context, settings, scheduled=True, now=lambda at_s=later_s: time.time() + at_s).run()
            if record.healed.startswith("restarted"):
                break
    finally:
        control.set_fault(simulated, None)
    assert record.healed.startswith("restarted (run "), (record.state, record.why, record.healed)
    run = record.healed.removeprefix("restarted (run ").partition(")")[0].partition(",")[0]
    events = "".join(path.read_text() for path in (two.home(HOSTS[1]) / "runs" / run).glob("events*"))
    assert "receives requests again from box" in events
    assert two.states() == {"side1": "up", "side2": "up"}


@pytest.mark.parametrize("task", ["Stop the server", "Enable restart policy, remove previous container"])
def test_a_run_that_was_killed_leaves_no_healthy_server_drained(two: TwoHostProject, task: str) -> None:
    """The next deploy returns it: what the run was about to do with it does not matter."""
    restart_killed_before(two, task)
    result = two.run("deploy", "--host", "side2", "--json", timeout_s=300)
    assert result.code in (0, 4), result.out[-3000:]
    assert two.states() == {"side1": "up", "side2": "up"}


def test_a_gateway_that_is_gone_keeps_nobody_from_restarting(two: TwoHostProject) -> None:
    engine = docker.DockerClient(base_url=control.up(two.sandbox / "hosts" / HOSTS[0])["DOCKER_HOST"])
    engine.api.stop("gateway")
    try:
        result = two.run("restart", "--host", "side2", timeout_s=300)
    finally:
        engine.api.start("gateway")
    assert result.code in (0, 4), result.out[-3000:]
    assert "the gateway box does not answer: not drained there." in result.out


def test_what_is_cut_is_said_and_in_the_history(two: TwoHostProject) -> None:
    """A stream that takes longer than `drain_s`."""
    two.groups["box"]["vars"]["drain_s"] = 0.5
    two.write()
    links = list[http.client.HTTPConnection]()
    try:
        while two.served(HOSTS[1]) == 0:
            links.append(http.client.HTTPConnection("127.0.0.1", two.gateway, timeout=60))
            body = {
                "model": MODEL,
                "messages": [{"role": "user", "content": "x"}],
                "stream": True,
                "max_tokens": 4000,
                "ignore_eos": True,
            }
            links[-1].request("POST", "/v1/chat/completions", json.dumps(body))
        result = two.run("restart", "--host", HOSTS[1], "--json", timeout_s=300)
    finally:
        two.groups["box"]["vars"]["drain_s"] = 20
        two.write()
        for link in links:
            link.close()
    assert result.code in (0, 4), result.out[-3000:]
    assert "aborted after" in result.task("Drain requests")["msg"]
    rows = two.run("history", "--host", HOSTS[1], "--json").events()
    assert any(row["what"] == "requests cut" and "aborted after" in row["why"] for row in rows)
