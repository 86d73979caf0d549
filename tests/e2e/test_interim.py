"""`swap`: a second server takes the requests of the only one of its model while that is replaced, on a simulated Spark."""

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control
from tests.e2e.alone import CONTAINER, INTERIM, MODEL, SingleServer, single_server
from tests.e2e.conftest import CommandResult
from tests.gateway.steady import SteadyClients

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
FIT_CHECK = "Check whether a second server fits next to it"
REMOVE_INTERIM = "Remove interim server"


@pytest.fixture(scope="module")
def single() -> Iterator[SingleServer]:
    with single_server() as value:
        yield value


@pytest.fixture
def alone(single: SingleServer) -> Iterator[SingleServer]:
    """It serves; what a test changed of the files is undone afterwards, and the server is as it was."""
    yield single
    for path, text in single.books.items():
        path.write_text(text)
    single.group()
    single.changed()
    assert (result := single.deploy()).code in (0, 4), result.out[-3000:] + result.err
    assert single.containers() == {CONTAINER: "running"}
    assert single.servers() == {"sandbox": "up"}


def test_a_deploy_of_the_only_server_fails_no_request(alone: SingleServer) -> None:
    before = alone.id()
    alone.changed()
    steady = SteadyClients(alone.port, MODEL)
    with steady.running():
        steady.wait_for_answers(20)
        result = alone.deploy()
        steady.wait_for_answers(20)
    assert result.code in (0, 4), result.out[-3000:]
    assert interim_took_over(result) and result.task(REMOVE_INTERIM)["msg"] == "removed"
    assert not steady.wrong
    assert alone.id() != before
    plays = [event["play"] for event in result.events() if event["event"] == "play_started"]
    assert plays == ["Deploy", "Deploy the gateway"], "also where the requests kept the throughput from being judged"
    assert alone.containers() == {CONTAINER: "running"}, "on its own port again, with the interim server gone"
    assert not (alone.state / "interim.json").exists()


def test_a_plan_says_that_the_interim_server_answers_meanwhile(alone: SingleServer) -> None:
    alone.changed()
    result = alone.project.run("plan", "--host", "sandbox", "--json")
    assert result.task("Drain requests")["msg"].startswith(f"{INTERIM} answers meanwhile; ")
    alone.group(swap="in_place")
    assert "server down for" in alone.project.run("plan", "--host", "sandbox", "--json").task("Drain requests")["msg"]


def test_a_server_that_had_an_interim_one_is_known_by_what_it_holds_itself(alone: SingleServer) -> None:
    """After the next stop its memory is waited for; and the caches are the server's, whoever of both used them last."""
    alone.changed()
    assert interim_took_over(alone.deploy())
    alone.group(swap="in_place")
    alone.changed()
    result = alone.deploy()
    assert result.task("Wait for its memory to be released")["data"]["back"] is True
    rows = alone.project.run("caches.list", "--host", "sandbox", "--json").out
    assert CONTAINER in rows and INTERIM not in rows


def test_a_deploy_with_nothing_to_do_starts_no_other_server(alone: SingleServer) -> None:
    before = alone.id()
    result = alone.deploy()
    assert (result.code, result.recap["changed"]) == (0, 0), result.out[-3000:]
    assert result.task(FIT_CHECK)["status"] == "skipped"
    assert alone.id() == before


def test_a_restart_of_the_only_server_fails_no_request(alone: SingleServer) -> None:
    steady = SteadyClients(alone.port, MODEL)
    with steady.running():
        steady.wait_for_answers(20)
        result = alone.project.run("restart", "--host", "sandbox", "--json", timeout_s=300)
        steady.wait_for_answers(20)
    assert result.code in (0, 4), result.out[-3000:]
    assert interim_took_over(result)
    assert not steady.wrong


def test_a_server_that_does_not_start_beside_the_running_one_touches_nothing(alone: SingleServer) -> None:
    """Replaced in place, the running one would have been stopped for it."""
    before, since = alone.id(), alone.project.docker().api.inspect_container(CONTAINER)["State"]["StartedAt"]
    alone.changed()
    assert alone.project.run("sandbox.fault", "oom").code == 0
    steady = SteadyClients(alone.port, MODEL)
    try:
        with steady.running():
            steady.wait_for_answers(10)
            result = alone.deploy()
            steady.wait_for_answers(10)
    finally:
        alone.project.run("sandbox.fault", "none")
    assert result.code == 1, result.out[-3000:]
    assert f"next to {CONTAINER}, which was not touched and is still serving" in result.out
    assert not steady.wrong
    now = alone.project.docker().api.inspect_container(CONTAINER)
    assert (now["Id"], now["State"]["StartedAt"]) == (before, since)
    assert alone.containers() == {CONTAINER: "running"}
    marker = alone.project.root / "kept"
    assert alone.project.run("incident", "--host", "sandbox", "--to", str(marker)).code == 0
    assert "Free memory on device" in (marker / "container.log").read_text()


def test_an_interim_server_that_would_take_the_host_down_is_stopped_in_time(alone: SingleServer) -> None:
    before = alone.id()
    alone.changed()
    control.set_fault(alone.project.sandbox, "overshoot")
    try:
        result = alone.deploy()
    finally:
        control.set_fault(alone.project.sandbox, None)
    assert result.code == 1, result.out[-3000:]
    assert "was stopped to save the host" in result.out
    assert not control.is_lost(alone.project.sandbox)
    assert (alone.id(), alone.containers()) == (before, {CONTAINER: "running"})


def test_one_that_is_too_slow_is_rolled_back_and_leaves_no_interim_server(alone: SingleServer) -> None:
    alone.changed()
    text = alone.recipe.read_text()
    alone.recipe.write_text(
        re.sub(r"(?m)^(expect:.*)$", r"\1\n  tok_per_s: 9000", re.sub(r"\n  tok_per_s: .*", "", text))
    )
    before = alone.id()
    result = alone.deploy()
    assert result.code == 1, result.out[-3000:]
    assert alone.id() == before
    assert alone.containers() == {CONTAINER: "running"}
    assert alone.servers() == {"sandbox": "up"}


@pytest.mark.parametrize("swap", ["auto", "beside"])
def test_what_does_not_fit_beside_is_replaced_in_place_or_refused(alone: SingleServer, swap: str) -> None:
    alone.group(swap=swap, reserve_gib=95)
    alone.changed()
    before = alone.id()
    result = alone.deploy()
    if swap == "auto":
        assert result.code in (0, 4), result.out[-3000:]
        assert "replaced in place: " in result.task(FIT_CHECK)["msg"] and "GiB needed" in result.task(FIT_CHECK)["msg"]
        assert alone.id() != before
    else:
        assert result.code == 5, result.out[-3000:]
        assert "`swap: beside`: no interim server fits beside" in result.task(FIT_CHECK)["msg"]
        assert alone.id() == before and alone.containers() == {CONTAINER: "running"}


def test_in_place_is_in_place(alone: SingleServer) -> None:
    alone.group(swap="in_place")
    alone.changed()
    result = alone.deploy()
    assert result.code in (0, 4), result.out[-3000:]
    assert "interim" not in result.task("Start the server")["msg"] and result.task(FIT_CHECK)["status"] == "skipped"


def test_without_a_gateway_there_is_nobody_to_send_it_requests(alone: SingleServer) -> None:
    text = json.dumps({"lab": {}, "box": {"hosts": ["sandbox"], "vars": {"swap": "beside"}}}, indent=1)
    (alone.project.root / "hosts/groups.yml").write_text(text)
    result = alone.project.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert "`swap: beside`: no gateway is in front of this host" in result.out + result.err
    assert "hosts/groups.yml:" in result.out + result.err


@pytest.mark.parametrize("task", ["Send requests to interim server", "Stop previous server, keep it for rollback"])
def test_a_health_check_removes_what_a_killed_run_left(alone: SingleServer, task: str) -> None:
    """With no laptop: the verified server was not stopped yet, and is well."""
    deploy_killed_before(alone, task)
    new = {f"{CONTAINER}-replacement": "created"}  # never started; the next deploy removes it
    assert alone.containers() == {CONTAINER: "running", INTERIM: "running"} | new
    extra = alone.project.docker().api.inspect_container(INTERIM)
    assert extra["HostConfig"]["RestartPolicy"]["Name"] == "no", "a reboot ends it"
    machine = Machine.from_environment(control.up(alone.project.sandbox))
    notes = list[str]()
    context = RunContext(
        machine, StateFolder.in_home(machine.home), "run-1", lambda value: notes.append(value.get("text", ""))
    )
    build_check(context, Settings(host="sandbox"), scheduled=True).run()
    assert f"{INTERIM} removed." in notes
    assert alone.containers() == {CONTAINER: "running"} | new
    assert alone.servers() == {"sandbox": "up"}


def test_after_a_run_that_was_killed_in_the_middle_the_interim_server_serves_until_the_next_one(
    alone: SingleServer,
) -> None:
    """The server is stopped: only the other one answers, and no request fails."""
    steady = SteadyClients(alone.port, MODEL)
    with steady.running():
        steady.wait_for_answers(10)
        deploy_killed_before(alone, "Check free memory")
        steady.wait_for_answers(10)
        assert alone.containers()[INTERIM] == "running"
        assert alone.containers().get(CONTAINER) != "running"
        result = alone.deploy()
        steady.wait_for_answers(10)
    assert result.code in (0, 4), result.out[-3000:]
    assert not steady.wrong
    assert alone.containers() == {CONTAINER: "running"}


def interim_took_over(result: CommandResult) -> bool:
    """Return True if the gateway sent the requests to an interim server meanwhile."""
    return str(result.task("Send requests to interim server")["msg"]) == "receives requests from box"


def test_a_previous_server_that_fails_too_leaves_the_interim_server_serving(alone: SingleServer) -> None:
    alone.changed()
    for task, reason in (
        ("Wait until it is ready", "the new one is broken."),
        ("Start previous server", "and the old one."),
    ):
        alone.project.before(task, f"{{name: Break, fail: {{msg: {reason}}}}}")
    result = alone.deploy()
    outcome = "The previous server failed: neither serves now."
    assert (result.code, result.recap["msg"]) == (1, f"the new one is broken. {outcome}"), result.out[-3000:]
    assert alone.containers()[INTERIM] == "running" and alone.servers()["sandbox::interim"] == "up"


def deploy_killed_before(alone: SingleServer, task: str) -> None:
    """A deploy whose runner is killed before this task."""
    alone.changed()
    alone.project.before(task, "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
    try:
        alone.deploy()
    finally:
        for path, text in alone.books.items():
            path.write_text(text)
