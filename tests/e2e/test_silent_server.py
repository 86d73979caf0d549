"""A server that matches its recipe and does not answer: `plan` announces a restart, and `deploy` makes it serve again."""

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sparkwright.host.records import history
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project, wait_for_line
from tests.waiting import wait_until

STOP_TASK = "Stop unresponsive server"
GENERATE_CHECK = "Check that the running server generates"


@pytest.fixture(scope="module")
def spark() -> Iterator[SandboxProject]:
    """A deployed server. Each test leaves it serving."""
    with sandbox_project() as value:
        value.deployed()
        yield value


def gives_token(project: SandboxProject) -> bool:
    body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}
    url = f"http://127.0.0.1:{project.port}/v1/chat/completions"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=3) as answer:
        return bool(json.loads(answer.read())["choices"])
    return False


def newest_history_entry(project: SandboxProject) -> dict[str, Any]:
    return history.read(project.state)[0]


def write_limits(project: SandboxProject, **limits: float) -> None:
    """Write the limits of a start, as `health.install` does."""
    project.state.write("health-settings", {"limits": limits})


def leave_serving(project: SandboxProject) -> None:
    pass


def stop_manually(project: SandboxProject) -> None:
    project.docker().api.stop("qwen35")


def kill_without_policy(project: SandboxProject) -> None:
    """Remove its restart policy, and kill it."""
    api = project.docker().api
    api.update_container("qwen35", restart_policy={"Name": "no"})
    api.kill("qwen35")
    wait_until(lambda: project.container()["State"]["Status"] == "exited", "its end")


def remove(project: SandboxProject) -> None:
    project.docker().api.remove_container("qwen35", force=True)
    wait_until(
        lambda: float(control.status(project.sandbox)["memory"].split()[0]) > 110, "its memory, released a moment later"
    )


def wedge(project: SandboxProject) -> None:
    control.set_fault(project.sandbox, "wedge")


def crash_loop(project: SandboxProject) -> None:
    control.set_fault(project.sandbox, "crash-loop")
    wait_until(lambda: project.container()["RestartCount"] > 2, "a loop")


def start_slowly(project: SandboxProject) -> None:
    """Crash the server; its next start takes as long as the fault is set."""
    control.set_fault(project.sandbox, "slow-start")
    wait_until(lambda: b"init engine" in project.docker().api.logs("qwen35", tail=1), "its start")


def start_beyond_limit(project: SandboxProject) -> None:
    write_limits(project, ready_floor_s=0.01, ready_factor=0.01)
    start_slowly(project)


@dataclass(frozen=True)
class Case:
    """An event, and the outcome of plan and deploy."""

    event: Callable[[SandboxProject], None]
    plan_code: int
    reason: str
    #: whether the container stays
    kept: bool = True
    restarted: bool = True


TABLE = [
    Case(leave_serving, 0, "generates: 1 token", restarted=False),
    Case(stop_manually, 2, "qwen35 has exited"),
    Case(kill_without_policy, 2, "qwen35 has exited (exit code 137)"),
    Case(remove, 2, "", kept=False),
    Case(wedge, 2, "/health answers 200, but no token arrived"),
    Case(crash_loop, 2, "qwen35"),
    Case(start_beyond_limit, 2, "no answer from"),
]


@pytest.mark.parametrize("case", TABLE, ids=[case.event.__name__ for case in TABLE])
def test_plan_announces_what_deploy_does_and_the_server_answers_afterwards(spark: SandboxProject, case: Case) -> None:
    before = spark.container()
    case.event(spark)
    try:
        plan = spark.run("plan", "--host", "sandbox", "--json")
        assert plan.code == case.plan_code, plan.out[-2000:]
        result = spark.deploy_proved()
        now = spark.container()
        assert gives_token(spark)
        assert now["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        assert (now["Id"] == before["Id"]) == case.kept
        assert (now["State"]["StartedAt"] != before["State"]["StartedAt"]) == case.restarted
        if case.kept:
            planned = plan.task(GENERATE_CHECK)["msg"]
            assert case.reason in planned and case.reason in result.task(GENERATE_CHECK)["msg"]
            assert ("will be restarted" in planned) == case.restarted
            assert (plan.task(STOP_TASK)["status"] == "skipped") == (not case.restarted)
            assert (case.reason in newest_history_entry(spark).get("why", "")) == case.restarted
    finally:
        control.set_fault(spark.sandbox, None)
        write_limits(spark)


def test_deploy_waits_for_a_starting_server(spark: SandboxProject) -> None:
    write_limits(spark, ready_floor_s=600)
    start_slowly(spark)
    start = spark.container()["State"]["StartedAt"]
    plan = spark.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 4, plan.out[-2000:]
    assert "qwen35 is starting for" in plan.recap["msg"] and "`deploy` waits for it" in plan.recap["msg"]
    laptop = spark.start("deploy", "--host", "sandbox", "--json")
    wait_for_line(laptop, "starting for")
    control.set_fault(spark.sandbox, None)
    out, _ = laptop.communicate(timeout=60)
    assert laptop.returncode == 0, out[-2000:]
    assert gives_token(spark)
    assert spark.container()["State"]["StartedAt"] == start
    write_limits(spark)


def test_a_failed_restart_is_repaired_by_the_next_deploy(spark: SandboxProject) -> None:
    stop_manually(spark)
    with spark.fault("oom"):
        result = spark.deploy()
    assert result.code == 1, result.out[-2000:]
    assert "GiB were free, and the engine requested" in result.recap["msg"]
    assert spark.container()["HostConfig"]["RestartPolicy"]["Name"] == "no", "it must not loop"
    assert not gives_token(spark)
    assert spark.deploy().proved
    assert gives_token(spark)


def test_a_restarted_server_that_fails_verification_is_restarted_once_more_and_kept(spark: SandboxProject) -> None:
    stop_manually(spark)
    with spark.restored_files():
        spark.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
        result = spark.deploy()
    assert (result.code, "broken Restarted once more; it is serving." in result.recap["msg"]) == (1, True), result.recap
    assert gives_token(spark)
    assert spark.container()["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    row = newest_history_entry(spark)
    assert (row["what"], row["why"]) == ("restored", "broken")
    assert "@sha256:" in row["image"] and row["commit"]
