"""Servers that are drained from their gateway before they stop, and return when they are verified, on two simulated Sparks."""

import contextlib
import http.client
import json
import shutil
from collections.abc import Iterator

import docker
import pytest

from sparkwright.health.judging.observation import Limits
from sparkwright.health.settings import Settings
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import CommandResult, wait_for_line
from tests.e2e.health_checks import run_check
from tests.e2e.test_bench import SMALL
from tests.e2e.two_hosts import HOSTS, MODEL, TwoHostProject, two_host_project
from tests.gateway.steady import SteadyClients
from tests.remote.sshd import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
BOTH_UP = dict.fromkeys(HOSTS, "up")


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHostProject]:
    with two_host_project() as value:
        yield value


@pytest.fixture(autouse=True)
def both_up(two: TwoHostProject) -> None:
    two.wait(**BOTH_UP)


def run_under_load(two: TwoHostProject, *words: str) -> CommandResult:
    """Run a command while clients send requests, and check that none fails and both servers are back."""
    steady = SteadyClients(two.gateway, MODEL)
    with steady.running():
        steady.wait_for_answers(20)
        result = two.run(*words, timeout_s=300)
        steady.wait_for_answers(20)
    assert not steady.wrong
    assert two.states() == BOTH_UP
    return result


def test_a_rolling_restart_fails_no_request_and_cuts_no_stream(two: TwoHostProject) -> None:
    result = run_under_load(two, "restart", "--host", "box", "--json")
    assert result.code in (0, 4), result.out[-3000:]


def test_a_canary_that_is_too_slow_is_rolled_back_and_fails_no_request(two: TwoHostProject) -> None:
    with two.restored_files():
        two.edit(f"recipes/{MODEL}.yml", r"max-num-seqs: \d+", "max-num-seqs: 4")
        two.edit(f"recipes/{MODEL}.yml", r"tok_per_s: .*", "tok_per_s: 9000")
        result = run_under_load(two, "deploy", "--host", "box", "--canary", "1", "--json")
    assert result.code == 1, result.out[-3000:]
    assert two.run("deploy", "--host", "box", "--check", timeout_s=300).code == 0


def test_the_arms_of_a_measurement_receive_no_client_requests(two: TwoHostProject) -> None:
    options = ("--host", HOSTS[1], "--flag", "chunked-prefill", "--name", "arms", *SMALL)
    result = run_under_load(two, "bench.ab", *options)
    assert result.code in (0, 4), result.out[-3000:]


def restart_killed_before(two: TwoHostProject, task: str) -> None:
    """Restart the second host, and kill the runner before this task."""
    with two.restored_files():
        two.before(task, "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
        two.run("restart", "--host", HOSTS[1], timeout_s=300)
    assert two.states()[HOSTS[1]] != "up"


def test_a_health_check_returns_the_running_server_that_a_killed_run_left_drained(two: TwoHostProject) -> None:
    restart_killed_before(two, "Stop the server")
    notes: list[str] = []
    run_check(two.sandbox / "hosts" / HOSTS[1], Settings(host=HOSTS[1]), notes=notes)
    assert "returned to the gateway box." in notes
    assert two.states()[HOSTS[1]] == "up"


def test_a_health_check_that_restarts_the_server_drains_it_first_and_returns_it(two: TwoHostProject) -> None:
    simulated = two.sandbox / "hosts" / HOSTS[1]
    settings = Settings(host=HOSTS[1], heal="restart", smoke_every_s=0, limits=Limits(token_s=0.4))
    control.set_fault(simulated, "wedge")
    try:
        for later_s in (0, 300, 600):
            record = run_check(simulated, settings, later_s=later_s)
            if record.healed.startswith("restarted"):
                break
    finally:
        control.set_fault(simulated, None)
    assert record.healed.startswith("restarted (run "), (record.state, record.why, record.healed)
    run = record.healed.removeprefix("restarted (run ").partition(")")[0].partition(",")[0]
    runs = StateFolder.in_home(simulated / "home").path / "runs"
    events = "".join(path.read_text() for path in (runs / run).glob("events*"))
    assert "receives requests again from box" in events
    assert two.states() == BOTH_UP


@pytest.mark.parametrize("task", ["Stop the server", "Enable restart policy, remove previous container"])
def test_the_next_deploy_returns_the_server_that_a_killed_run_left_drained(two: TwoHostProject, task: str) -> None:
    restart_killed_before(two, task)
    result = two.run("deploy", "--host", "side2", "--json", timeout_s=300)
    assert result.code in (0, 4), result.out[-3000:]
    assert two.states() == BOTH_UP


def test_a_drained_server_is_returned_to_a_gateway_whose_control_port_has_changed(two: TwoHostProject) -> None:
    restart_killed_before(two, "Stop the server")
    with two.restored_files():
        two.edit("hosts/groups.yml", '"tls": "none"', f'"tls": "none", "control_port": {free_port()}')
        two.run("gateway.deploy", "--host", "box")
        assert two.states()[HOSTS[1]] != "up"
        result = two.run("deploy", "--host", HOSTS[1], timeout_s=300)
        assert result.code in (0, 4), result.out[-3000:]
        assert two.states() == BOTH_UP
    assert two.run("gateway.deploy", "--host", "box").code == 0


def test_a_stopped_gateway_does_not_prevent_a_restart(two: TwoHostProject) -> None:
    engine = docker.DockerClient(base_url=control.up(two.sandbox / "hosts" / HOSTS[0])["DOCKER_HOST"])
    engine.api.stop("gateway")
    try:
        result = two.run("restart", "--host", "side2", timeout_s=300)
    finally:
        engine.api.start("gateway")
    assert result.code in (0, 4), result.out[-3000:]
    assert "the gateway box does not answer: not drained there." in result.out
    two.wait(**BOTH_UP)
    assert two.run("plan", "--host", "side2").code == 0, "a server that the gateway reports as up is not drained"


@contextlib.contextmanager
def running_stream(two: TwoHostProject) -> Iterator[None]:
    """Keep a stream of the second host running."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000}
    content = json.dumps({**body, "stream": True, "ignore_eos": True})
    with contextlib.ExitStack() as streams:

        def send_request() -> int:
            link = http.client.HTTPConnection("127.0.0.1", two.gateway, timeout=60)
            streams.callback(link.close)
            link.request("POST", "/v1/chat/completions", content)
            return two.running(HOSTS[1])

        wait_until(send_request, "a request on the second host")
        yield


def test_a_measurement_that_is_stopped_during_the_drain_returns_the_server(two: TwoHostProject) -> None:
    arguments = ("bench.ab", "--host", HOSTS[1], "--flag", "chunked-prefill", "--name", "stopped", *SMALL)
    with running_stream(two):
        laptop = two.start(*arguments, "--json")
        wait_for_line(laptop, '"name": "Drain requests')
        assert two.run("stop", "--host", HOSTS[1]).code == 0
    out = laptop.communicate(timeout=120)[0]
    assert (laptop.returncode, "stopped on request, before: Stop server" in out) == (1, True), out[-3000:]
    assert two.states() == BOTH_UP


def test_requests_aborted_after_drain_s_are_reported_and_recorded(two: TwoHostProject) -> None:
    with two.restored_files():
        two.edit("hosts/groups.yml", '"drain_s": 20', '"drain_s": 0.5')
        with running_stream(two):
            result = two.run("restart", "--host", HOSTS[1], "--json", timeout_s=300)
    assert result.code in (0, 4), result.out[-3000:]
    assert "aborted after" in result.task("Drain requests")["msg"]
    rows = two.run("history", "--host", HOSTS[1], "--json").events()
    assert any(row["what"] == "requests cut" and "aborted after" in row["why"] for row in rows)
