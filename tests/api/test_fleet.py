"""`from sparkwright import Fleet` in programs: opened from another folder, several in a process, and printing nothing."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sparkwright import Fleet
from sparkwright.api import Exit, Inconclusive, Refused, Unreachable
from tests.e2e.conftest import TOP, SandboxProject, sandbox_project, wait_for_line


def test_two_fleets_in_one_process_are_independent_and_print_nothing(
    project: SandboxProject, fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with sandbox_project() as second:
        other = Fleet.open(str(second.root / "recipes"))
        project.deployed()
        assert (fleet.root, other.root) == (project.root, second.root)
        runs = fleet.plan("sandbox"), other.plan("sandbox")
        same, new = (run.result() for run in runs)
        states = fleet.status("sandbox")[0].state, other.status("sandbox")[0].state
    assert (same.exit, new.exit) == (Exit.OK, Exit.CHANGES)
    assert states == ("up", "down")
    assert "Start the server" in [task.name for task in new.changes] and not same.changes
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [] and Path.cwd() == tmp_path


def test_a_deploy_streams_events_and_returns_a_typed_result(fleet: Fleet) -> None:
    with fleet.deploy("sandbox") as run:
        events = list(run)
    result = run.result()
    assert events[0].kind == "play_started" and events[-1].kind == "recap"
    assert {"task_started", "task_finished", "host_finished"} <= {event.kind for event in events}
    finished = [event.fields["name"] for event in events if event.kind == "task_finished"]
    assert finished == [task.name for task in result.tasks]
    budget = result.budgets["sandbox"]
    assert budget.fits and budget.left_bytes == budget.total_bytes - budget.need_bytes
    assert {"GPU's side", "reserve"} <= {row.name for row in budget.rows}
    if result.exit is not Exit.INCONCLUSIVE:  # this machine was too busy to measure
        assert result.check() is result and result.hosts["sandbox"].changed > 3
        (history,) = fleet.history("sandbox")
        assert history.acts[0]["what"] == "verified"


def test_queries_of_a_server_return_typed_values(project: SandboxProject, fleet: Fleet) -> None:
    project.deployed()
    (health,) = fleet.health("sandbox").result().hosts.values()
    (diagnosis,) = fleet.diagnose("sandbox")
    (log,) = fleet.logs("sandbox", tail=5)
    assert health.exit is Exit.OK
    assert diagnosis.container["name"] == "qwen35" and {cause.verdict for cause in diagnosis.causes} >= {"excluded"}
    assert len(log.text.splitlines()) <= 5 and log.state["version"] and log.known
    assert fleet.verify("sandbox").result().exit in (Exit.OK, Exit.INCONCLUSIVE)


def test_an_unreachable_host_is_a_row_or_a_typed_error(fleet: Fleet) -> None:
    queries = (fleet.status, fleet.diagnose, fleet.logs, fleet.history, fleet.incident, fleet.report)
    for query in queries:
        (value,) = query("away")
        assert value.exit == Exit.UNREACHABLE and "refuses connections" in value.error
    result = fleet.plan("away").result()
    assert result.exit is Exit.UNREACHABLE
    with pytest.raises(Unreachable, match="refuses connections"):
        result.check()


def test_mistakes_raise_exceptions_that_name_them(project: SandboxProject, fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="nobody"):
        fleet.status("nobody")
    with pytest.raises(Refused, match="nobody"):
        fleet.deploy("nobody").result()
    with pytest.raises(Refused, match=str(tmp_path)):
        Fleet.open(tmp_path)
    with pytest.raises(TypeError, match="no such option: cannary"):
        fleet.deploy("sandbox", cannary=1)  # type: ignore[call-arg]
    project.edit("recipes/qwen3.5-35b.yml", "image:", "imagee:")
    with pytest.raises(Refused, match=r"recipes/qwen3\.5-35b\.yml:\d+"):
        fleet.plan("sandbox").result().check()


def test_negative_numbers_and_nan_are_refused(fleet: Fleet) -> None:
    questions = (
        lambda: fleet.health("sandbox", token_s=-1),
        lambda: fleet.diagnose("sandbox", token_s=-1),
        lambda: fleet.logs("sandbox", tail=-1),
        lambda: fleet.history("sandbox", last=-1),
        lambda: fleet.diagnose("sandbox", token_s=math.nan),
    )
    for question in questions:
        with pytest.raises(Refused, match="must be at least 0, got (-1|nan)"):
            question()


def test_an_argument_of_a_wrong_type_is_named_before_a_run_starts(fleet: Fleet) -> None:
    call: Any = fleet  # as a program without a type checker
    hosts_message = r"`hosts` must be a string, got \['sandbox'\] \(list\)\."
    for method in ("hosts", "status", "diagnose", "logs", "history", "incident", "report", "plan", "deploy", "restart"):
        with pytest.raises(TypeError, match=hosts_message):
            getattr(call, method)(["sandbox"])
    for method in ("rollback", "verify", "health", "attach"):
        with pytest.raises(TypeError, match=hosts_message):
            getattr(call, method)(hosts=["sandbox"])
    mistakes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: Fleet.open(cast(Any, None)), "`path` must be a string or a Path, got None (NoneType)."),
        (lambda: call.deploy(Path("sandbox")), "`hosts` must be a string, got PosixPath('sandbox') (PosixPath)."),
        (lambda: call.deploy("sandbox", rollback="no"), "`rollback` must be True or False, got 'no' (str)."),
        (lambda: call.deploy("sandbox", serial=2), "`serial` must be a string, got 2 (int)."),
        (lambda: call.plan("sandbox", tags=["engine"]), "`tags` must be a string, got ['engine'] (list)."),
        (lambda: call.plan("sandbox", canary=True), "`canary` must be an integer, got True (bool)."),
        (lambda: call.switch("sandbox", None), "`to` must be a string, got None (NoneType)."),
        (lambda: call.run_playbook(3, "sandbox"), "`playbook` must be a string, got 3 (int)."),
        (lambda: call.logs("sandbox", tail="5"), "`tail` must be an integer, got '5' (str)."),
        (lambda: call.health("sandbox", token_s="1"), "`token_s` must be a number, got '1' (str)."),
        (lambda: call.report(since=7), "`since` must be a string, got 7 (int)."),
    )
    for mistake, message in mistakes:
        with pytest.raises(TypeError, match=re.escape(message)):
            mistake()
    assert fleet.health("sandbox", token_s=2).result().hosts  # an int is a number


def test_a_run_continues_on_the_host_without_its_program(project: SandboxProject, fleet: Fleet) -> None:
    project.deployed()
    run = fleet.restart("sandbox")
    for event in run:
        if event.kind == "task_started":
            break
    with pytest.raises(Inconclusive, match="still running on sandbox"):
        run.result()
    assert fleet.attach("sandbox").result().exit in (Exit.OK, Exit.INCONCLUSIVE)


def test_a_stopped_run_ends_at_a_safe_point(project: SandboxProject, fleet: Fleet) -> None:
    project.deployed()
    hold = f"until find {project.sandbox} -name stop | grep -q .; do sleep 0.05; done"  # until the request arrives
    project.before("Stop the server", f"{{name: Hold, command: {{argv: [sh, -c, '{hold}']}}}}")
    run = fleet.restart("sandbox")
    for event in run:
        if event.kind == "task_started" and event.fields["name"] == "Hold":
            run.stop()
    result = run.result()
    assert result.exit is Exit.FAILED
    assert "Stop the server" not in [task.name for task in result.tasks]


EXAMPLES = re.findall(r"```python\n(.*?)```", (TOP / "docs/api.md").read_text(), re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_documentation_runs(
    project: SandboxProject, tmp_path: Path, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    project.deployed()
    for name in ("away", "spark1"):
        (project.root / f"hosts/{name}.yml").unlink()
    (tmp_path / "my-sparks").symlink_to(project.root)
    exec(compile(example, "docs/api.md", "exec"), {})
    assert capsys.readouterr().out


INTERRUPTED_PROGRAM = """
import sys
from sparkwright import Fleet
for event in Fleet.open(sys.argv[1]).restart("sandbox"):
    print(event.kind, flush=True)
"""


def test_ctrl_c_ends_the_program_and_the_run_continues_on_the_host(project: SandboxProject, fleet: Fleet) -> None:
    project.deployed()
    env = {**os.environ, "PYTHONPATH": str(TOP / "src")}
    command = [sys.executable, "-c", INTERRUPTED_PROGRAM, str(project.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as program:
        wait_for_line(program, "task_started")
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    assert err.endswith("KeyboardInterrupt\n") and program.returncode in (1, -signal.SIGINT, 130)
    assert fleet.attach("sandbox").result().exit in (Exit.OK, Exit.INCONCLUSIVE)


@pytest.mark.parametrize("imported", ["sparkwright", "sparkwright.cli"])
def test_other_imports_do_not_load_the_api(imported: str) -> None:
    program = f"import sys, json, {imported}; print(json.dumps(sorted(sys.modules)))"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = json.loads(completed.stdout)
    assert not [item for item in modules if item.startswith(("sparkwright.api", "mcp", "pydantic"))]
