"""`swap`: an interim server answers requests while the only server of a model is replaced, on a simulated Spark."""

import json
import re
import shutil
from collections.abc import Iterator

import pytest

from sparkwright.health.settings import Settings
from sparkwright.sandbox import control
from tests.e2e.alone import CONTAINER, INTERIM, MODEL, SingleServer, single_server
from tests.e2e.conftest import CommandResult
from tests.e2e.health_checks import run_check
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
    """A serving server. The files are restored and the server is replaced after each test."""
    with single.project.restored_files():
        yield single
    single.write_group()
    single.change_recipe()
    assert (result := single.deploy()).code in (0, 4), result.out[-3000:] + result.err
    assert single.containers() == {CONTAINER: "running"}
    assert single.servers() == {"sandbox": "up"}


def test_a_deploy_of_the_only_server_fails_no_request(alone: SingleServer) -> None:
    before = alone.id()
    alone.change_recipe()
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
    assert plays == ["Deploy", "Deploy the gateway"], "also if the throughput could not be measured under load"
    assert alone.containers() == {CONTAINER: "running"}
    assert not (alone.project.state.path / "interim.json").exists()


def test_a_plan_names_the_interim_server_or_the_downtime(alone: SingleServer) -> None:
    alone.change_recipe()
    result = alone.project.run("plan", "--host", "sandbox", "--json")
    assert result.task("Drain requests")["msg"].startswith(f"{INTERIM} answers in the meantime; ")
    alone.write_group(swap="in_place")
    assert "server down for" in alone.project.run("plan", "--host", "sandbox", "--json").task("Drain requests")["msg"]


def test_memory_and_caches_are_the_servers_after_an_interim_server(alone: SingleServer) -> None:
    alone.change_recipe()
    assert interim_took_over(alone.deploy())
    alone.write_group(swap="in_place")
    alone.change_recipe()
    result = alone.deploy()
    assert result.task("Wait for its memory to be released")["data"]["back"] is True
    rows = alone.project.run("caches.list", "--host", "sandbox", "--json").out
    assert CONTAINER in rows and INTERIM not in rows


def test_an_unchanged_deploy_starts_no_interim_server(alone: SingleServer) -> None:
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


def test_an_interim_server_that_fails_to_start_leaves_the_running_server_untouched(alone: SingleServer) -> None:
    before = alone.project.container(CONTAINER)
    alone.change_recipe()
    steady = SteadyClients(alone.port, MODEL)
    with alone.project.fault("oom"), steady.running():
        steady.wait_for_answers(10)
        result = alone.deploy()
        steady.wait_for_answers(10)
    assert result.code == 1, result.out[-3000:]
    assert f"next to {CONTAINER}, which was not touched and is still serving" in result.out
    assert not steady.wrong
    now = alone.project.container(CONTAINER)
    assert (now["Id"], now["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])
    assert alone.containers() == {CONTAINER: "running"}
    folder = alone.project.root / "incident"
    assert alone.project.run("incident", "--host", "sandbox", "--to", str(folder)).code == 0
    assert "Free memory on device" in (folder / "container.log").read_text()


def test_the_guard_stops_an_interim_server_that_exhausts_memory(alone: SingleServer) -> None:
    before = alone.id()
    alone.change_recipe()
    with alone.project.fault("overshoot"):
        result = alone.deploy()
    assert result.code == 1, result.out[-3000:]
    assert "was stopped to save the host" in result.out
    assert not control.ran_out_of_memory(alone.project.sandbox)
    assert (alone.id(), alone.containers()) == (before, {CONTAINER: "running"})


def test_a_slow_server_is_rolled_back_without_leaving_an_interim_server(alone: SingleServer) -> None:
    alone.change_recipe()
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
def test_without_memory_for_an_interim_server_auto_replaces_in_place_and_beside_refuses(
    alone: SingleServer, swap: str
) -> None:
    alone.write_group(swap=swap, reserve_gib=95)
    alone.change_recipe()
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


def test_in_place_starts_no_interim_server(alone: SingleServer) -> None:
    alone.write_group(swap="in_place")
    alone.change_recipe()
    result = alone.deploy()
    assert result.code in (0, 4), result.out[-3000:]
    assert "interim" not in result.task("Start the server")["msg"] and result.task(FIT_CHECK)["status"] == "skipped"


def test_beside_without_a_gateway_is_refused(alone: SingleServer) -> None:
    text = json.dumps({"lab": {}, "box": {"hosts": ["sandbox"], "vars": {"swap": "beside"}}}, indent=1)
    (alone.project.root / "hosts/groups.yml").write_text(text)
    result = alone.project.run("deploy", "--host", "sandbox")
    assert result.code == 5
    assert "`swap: beside`: no gateway is in front of this host" in result.out + result.err
    assert "hosts/groups.yml:" in result.out + result.err


@pytest.mark.parametrize("task", ["Send requests to interim server", "Stop previous server, keep it for rollback"])
def test_a_health_check_removes_the_interim_server_of_a_killed_run(alone: SingleServer, task: str) -> None:
    """The verified server was not stopped yet."""
    deploy_killed_before(alone, task)
    new = {f"{CONTAINER}-replacement": "created"}  # the next deploy removes it
    assert alone.containers() == {CONTAINER: "running", INTERIM: "running"} | new
    interim = alone.project.container(INTERIM)
    assert interim["HostConfig"]["RestartPolicy"]["Name"] == "no", "a reboot must end it"
    notes: list[str] = []
    run_check(alone.project.sandbox, Settings(host="sandbox"), notes=notes)
    assert f"{INTERIM} removed." in notes
    assert alone.containers() == {CONTAINER: "running"} | new
    assert alone.servers() == {"sandbox": "up"}


def test_after_a_killed_run_the_interim_server_serves_until_the_next_deploy(alone: SingleServer) -> None:
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
    return str(result.task("Send requests to interim server")["msg"]) == "receives requests from box"


def test_if_the_previous_server_fails_too_the_interim_server_stays(alone: SingleServer) -> None:
    alone.change_recipe()
    for task, reason in (
        ("Wait until it is ready", "the new one is broken."),
        ("Start previous server", "and the old."),
    ):
        alone.project.before(task, f"{{name: Break, fail: {{msg: {reason}}}}}")
    result = alone.deploy()
    outcome = "The previous server failed: neither serves now."
    assert (result.code, result.recap["msg"]) == (1, f"the new one is broken. {outcome}"), result.out[-3000:]
    assert alone.containers()[INTERIM] == "running" and alone.servers()["sandbox::interim"] == "up"


def deploy_killed_before(alone: SingleServer, task: str) -> None:
    """Deploy, and kill the runner before this task."""
    alone.change_recipe()
    with alone.project.restored_files():
        alone.project.before(task, "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}")
        alone.deploy()
