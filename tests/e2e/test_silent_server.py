"""A server that is as the recipe says and does not answer: what plan says, what deploy does, and a client's token afterwards."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sparkwright.host.records import history
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.waiting import wait_until

STOP_TASK = "Stop unresponsive server"
GENERATE_CHECK = "Check that the running server generates"


@pytest.fixture(scope="module")
def spark() -> Iterator[SandboxProject]:
    """One project for the whole table; each row begins and ends with a server that serves."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as value:
        value.deployed()
        yield value
    patch.undo()


def gives_token(project: SandboxProject) -> bool:
    """Return True if a client gets a token."""
    body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}
    url = f"http://127.0.0.1:{project.port}/v1/chat/completions"
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=3) as answer:
        return bool(json.loads(answer.read())["choices"])
    return False


def inspect_container(project: SandboxProject) -> dict[str, Any]:
    container: dict[str, Any] = project.docker().api.inspect_container("qwen35")
    return container


def newest_history_entry(project: SandboxProject) -> dict[str, Any]:
    """The newest act of the history."""
    return history.read(StateFolder.in_home(project.sandbox / "home"))[0]


def write_limits(project: SandboxProject, **limits: float) -> None:
    """Write the limits of a start, as `health.install` does."""
    StateFolder.in_home(project.sandbox / "home").write("health-settings", {"limits": limits})


# -- what happens to a server ------------------------------------------------------------------------------------------


def leave_serving(project: SandboxProject) -> None:
    pass


def stop_manually(project: SandboxProject) -> None:
    project.docker().api.stop("qwen35")


def kill_without_policy(project: SandboxProject) -> None:
    """Remove its restart policy, and kill it."""
    api = project.docker().api
    api.update_container("qwen35", restart_policy={"Name": "no"})
    api.kill("qwen35")
    wait_until(lambda: inspect_container(project)["State"]["Status"] == "exited", "its end")


def remove(project: SandboxProject) -> None:
    project.docker().api.remove_container("qwen35", force=True)
    wait_until(
        lambda: float(control.status(project.sandbox)["memory"].split()[0]) > 110, "its memory, released a moment later"
    )


def wedge(project: SandboxProject) -> None:
    control.set_fault(project.sandbox, "wedge")


def crash_loop(project: SandboxProject) -> None:
    control.set_fault(project.sandbox, "crash-loop")
    wait_until(lambda: inspect_container(project)["RestartCount"] > 2, "a loop")


def start_slowly(project: SandboxProject) -> None:
    """Let it die and start again, with a start that takes as long as the fault is set."""
    control.set_fault(project.sandbox, "slow-start")
    wait_until(lambda: b"init engine" in project.docker().api.logs("qwen35", tail=1), "its start")


def start_beyond_limit(project: SandboxProject) -> None:
    write_limits(project, ready_floor_s=0.01, ready_factor=0.01)
    start_slowly(project)


@dataclass(frozen=True)
class Case:
    """plan: its exit code. word: of the sentence that tells why. kept: the container is the same one, and its start too."""

    happens: Callable[[SandboxProject], None]
    plan: int
    word: str
    kept: bool = True
    started_anew: bool = True


TABLE = [
    Case(leave_serving, 0, "generates: 1 token", started_anew=False),
    Case(stop_manually, 2, "qwen35 has exited"),
    Case(kill_without_policy, 2, "qwen35 has exited (exit code 137)"),
    Case(remove, 2, "", kept=False),
    Case(wedge, 2, "/health answers 200, but no token arrived"),
    Case(crash_loop, 2, "qwen35"),
    Case(start_beyond_limit, 2, "no answer from"),
]


@pytest.mark.parametrize("row", TABLE, ids=[row.happens.__name__ for row in TABLE])
def test_plan_says_what_deploy_does_and_a_client_is_served_afterwards(spark: SandboxProject, row: Case) -> None:
    before = inspect_container(spark)
    row.happens(spark)
    try:
        plan = spark.run("plan", "--host", "sandbox", "--json")
        assert plan.code == row.plan, plan.out[-2000:]
        result = spark.deploy()
        assert result.proved, result.out[-3000:]
        now = inspect_container(spark)
        assert gives_token(spark)
        assert now["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        assert (now["Id"] == before["Id"]) == row.kept
        assert (now["State"]["StartedAt"] != before["State"]["StartedAt"]) == row.started_anew
        if row.kept:
            assert row.word in plan.task(GENERATE_CHECK)["msg"] and row.word in result.task(GENERATE_CHECK)["msg"]
            assert ("will be restarted" in plan.task(GENERATE_CHECK)["msg"]) == row.started_anew
            assert (plan.task(STOP_TASK)["status"] == "skipped") == (not row.started_anew)
        assert (row.word in newest_history_entry(spark).get("why", "")) == (
            row.kept and row.started_anew
        ) or not row.word
    finally:
        control.set_fault(spark.sandbox, None)
        write_limits(spark)


def test_a_server_that_is_starting_is_waited_for_and_not_started_anew(spark: SandboxProject) -> None:
    write_limits(spark, ready_floor_s=600)
    start_slowly(spark)
    start = inspect_container(spark)["State"]["StartedAt"]
    plan = spark.run("plan", "--host", "sandbox", "--json")
    assert plan.code == 4, plan.out[-2000:]
    assert "qwen35 is starting for" in plan.recap["msg"] and "`deploy` waits for it" in plan.recap["msg"]
    command = [
        sys.executable,
        "-c",
        "from sparkwright.cli import main; main()",
        "deploy",
        "--host",
        "sandbox",
        "--json",
    ]
    laptop = subprocess.Popen(command, cwd=spark.root, stdout=subprocess.PIPE, text=True)
    assert laptop.stdout is not None
    assert any("starting for" in line for line in laptop.stdout if '"progress"' in line)
    control.set_fault(spark.sandbox, None)
    out, _ = laptop.communicate(timeout=60)
    assert laptop.returncode == 0, out[-2000:]
    assert gives_token(spark)
    assert inspect_container(spark)["State"]["StartedAt"] == start
    write_limits(spark)


def test_a_restart_that_does_not_help_fails_and_the_next_deploy_makes_it_serve(spark: SandboxProject) -> None:
    stop_manually(spark)
    control.set_fault(spark.sandbox, "oom")
    result = spark.deploy()
    assert result.code == 1, result.out[-2000:]
    assert "GiB were free, and the engine requested" in result.recap["msg"]
    assert inspect_container(spark)["HostConfig"]["RestartPolicy"]["Name"] == "no", "no loop is fed"
    control.set_fault(spark.sandbox, None)
    assert not gives_token(spark)
    assert spark.deploy().proved
    assert gives_token(spark)


def test_one_that_generates_but_is_not_what_it_was_serves_on(spark: SandboxProject) -> None:
    """The restart of a dead server whose proof fails: it is started once more, generates, and keeps its policy."""
    stop_manually(spark)
    playbooks = {path: path.read_text() for path in (spark.root / "playbooks").rglob("*.yml")}
    spark.before("Measure throughput", "{name: Break, fail: {msg: broken}}")
    result = spark.deploy()
    for path, text in playbooks.items():
        path.write_text(text)
    assert (result.code, "broken Restarted once more; it is serving." in result.recap["msg"]) == (1, True), result.recap
    assert gives_token(spark)
    assert inspect_container(spark)["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    row = newest_history_entry(spark)
    assert (row["what"], row["why"]) == ("restored", "broken")
    assert "@sha256:" in row["image"] and row["commit"]
