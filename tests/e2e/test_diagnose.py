"""`diagnose` on the sandbox: the first sentence, the exit code and the first cause of each problem."""

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest

from sparkwright.console.rows import Diagnosis
from sparkwright.health import settings
from sparkwright.host.runs import lock
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project
from tests.waiting import wait_until

FAST = r"not slow: 4\d(\.\d)? of 4\d(\.\d)? tok/s"
SLOW = r"slow: 5\.7 of 4\d.* tok/s; "
NO_SERVER = "no server answers: "
CRASHED = NO_SERVER + r"(crash loop: )?qwen35 exited (\(1\) )?\d+ s ago.*its last log line: \"RuntimeError: .*\""
STARTING = NO_SERVER + r"slow start: qwen35 has been starting for \d+ s.*"
WEDGED = r"no token: the server is wedged: /health returns 200.* within 3 s"
DIFFERS = "it differs from the verified state"
TIMEOUT_S = 60.0
#: between two diagnoses of a server that changes
PAUSE_S = 1.0


@dataclass(frozen=True)
class Case:
    """A problem and its diagnosis.

    event: a fault, or a method of Docker's API. summary: a pattern of the first line. cause: the start of the first cause that
    was found or is possible, as VERDICT: NAME; empty without one. until: the state to wait for.
    """

    event: str
    code: int
    summary: str
    cause: str = ""
    until: str = ""


CASES = (
    Case("none", 0, FAST),
    Case("slow", 1, SLOW + "no measured cause", "possible: a stale compile cache"),
    Case("power", 1, SLOW + r"the GPU is held at a low clock.*712 MHz.*", "found: the GPU is held"),
    Case("hot", 1, FAST + r"; but the GPU is too hot: .*96 .*", "found: the GPU is too hot"),
    Case("no-space", 1, FAST + r"; but the disk is full: 0\.0 GiB of disk space free", "found: the disk is full"),
    Case("wedge", 1, WEDGED, "found: the engine is hung"),
    Case("crash-loop", 1, CRASHED, "found: a kernel accessed invalid memory", until="crash-looping"),
    Case("slow-start", 1, STARTING, "found:", until="slow start"),
    Case("engine-exits", 1, NO_SERVER + r".*qwen35 exited \(\d\) \d+ s ago.*", "found:"),
    Case("stop", 1, NO_SERVER + r'qwen35 exited \(0\) \d+ s ago, its last log line: ".*"', "possible: it was stopped"),
    Case("kill", 1, NO_SERVER + r'qwen35 exited \(137\) \d+ s ago, its last log line: ".*"', "possible: it was"),
    Case("half-model", 1, FAST + f"; but {DIFFERS}: .*model-00007.*", f"found: {DIFFERS}"),
    Case("remove_container", 1, NO_SERVER + "there is no container qwen35"),
)
DOCKER_EVENTS = ("stop", "kill", "remove_container")


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    with sandbox_project() as project:
        project.deployed()
        yield project


def diagnose(project: SandboxProject, *words: str) -> dict[str, Any]:
    """Run `diagnose --json`, again while this machine is too busy to measure."""
    for _ in range(5):
        result = project.run("diagnose", "--host", "sandbox", "--json", *(words or ("--token-s", "3")))
        row: dict[str, Any] = json.loads(result.out)
        assert row["exit"] == result.code
        if "client is too slow" not in row["summary"]:
            break
    return row


def restore_server(project: SandboxProject) -> None:
    control.set_fault(project.sandbox, None)
    if project.containers() == ["qwen35 running"]:
        project.docker().api.restart("qwen35")
    else:
        project.docker().api.start("qwen35")
    wait_until(project.is_up, "the server")


def diagnose_case(project: SandboxProject, case: Case) -> dict[str, Any]:
    """Cause the problem, and return the diagnosis of its final state."""
    if case.event in DOCKER_EVENTS:
        options = {"force": True} if case.event == "remove_container" else {}
        getattr(project.docker().api, case.event)("qwen35", **options)
    else:
        control.set_fault(project.sandbox, None if case.event == "none" else case.event)
    row = diagnose(project)
    deadline_s = time.monotonic() + TIMEOUT_S
    while case.until and row["state"] != case.until and time.monotonic() < deadline_s:
        assert row["exit"] in (1, 4), row["summary"]
        time.sleep(PAUSE_S)
        row = diagnose(project)
    return row


@pytest.mark.parametrize("case", CASES, ids=[case.event for case in CASES])
def test_each_problem_has_its_summary_exit_code_and_cause(served: SandboxProject, case: Case) -> None:
    row = diagnose_case(served, case)
    try:
        assert re.fullmatch(case.summary, row["summary"]), json.dumps(row, indent=1)
        assert row["exit"] == case.code
        causes = [f"{cause['verdict']}: {cause['cause']}" for cause in row["causes"]]
        relevant = [text for text in causes if text.startswith(("found", "possible"))]
        assert relevant[0].startswith(case.cause) if case.cause else not relevant, causes
        assert all(cause["evidence"] for cause in row["causes"])
        assert list(row) == [field.name for field in fields(Diagnosis)]
    finally:
        if case.code and case.event != "remove_container":
            restore_server(served)
        else:
            control.set_fault(served.sandbox, None)


# -- without disturbing others -----------------------------------------------------------------------------------------


def count_requests(project: SandboxProject) -> int:
    """Return the number of requests in the server's log."""
    log = project.docker().api.logs("qwen35")
    return int(log.count(b"/v1/chat/completions HTTP/1.1"))


def test_nothing_is_measured_under_the_load_of_clients(project: SandboxProject) -> None:
    project.deployed()
    with project.open_stream(4000):
        before = count_requests(project)
        row = diagnose(project)
        assert count_requests(project) == before
    assert re.fullmatch(r"not measured: 1 request running at [\d.]+ tok/s in total; .*", row["summary"])
    assert (row["state"], row["exit"], row["tok_per_s"]) == ("busy", 4, None)


def test_nothing_is_measured_during_another_run(project: SandboxProject) -> None:
    project.deployed()
    before = count_requests(project)
    owner = lock.LockOwner("deploy", "ada@laptop", "20260101T000000-ab", os.getpid(), time.time())
    with lock.acquire(project.state, owner, host="sandbox"):
        row = diagnose(project)
        project.docker().api.stop("qwen35")
        stopped = diagnose(project)
    in_progress = "in progress: deploy by ada@laptop, since .*; "
    assert re.match(in_progress + "/health answers; not measured", row["summary"])
    assert re.match(in_progress + "no server answers: qwen35 exited", stopped["summary"])
    assert (row["exit"], stopped["exit"], count_requests(project)) == (4, 4, before)


def test_a_server_with_requests_is_wedged_only_after_frozen_s_without_tokens(project: SandboxProject) -> None:
    project.deployed()
    with project.open_stream(5000):
        control.set_fault(project.sandbox, "wedge")
        row = diagnose(project, "--token-s", "1")
        assert re.match(r"unknown whether it is wedged: 1 request running, no token for \d+ s; .*", row["summary"])
        assert (row["state"], row["exit"]) == ("unknown", 4)

        project.state.write(settings.NAME, {"limits": {"frozen_s": 1.0}})
        row = diagnose(project)
        assert re.match(r"no token: the server is wedged: 1 request running, no token for \d+ s", row["summary"])
        assert (row["state"], row["exit"]) == ("stalled", 1)


# -- without parts of the project or the host --------------------------------------------------------------------------


def test_diagnose_needs_no_lock_registry_or_recipe(project: SandboxProject) -> None:
    project.deployed()
    (project.sandbox / "spark.lock").unlink()
    project.edit("recipes/qwen3.5-35b.yml", "(?m)^image:.*", "image: no.such.registry.invalid/vllm:v1")
    row = diagnose(project)
    assert re.fullmatch(FAST, row["summary"])
    assert not list(project.root.rglob("spark.lock"))

    project.edit("recipes/qwen3.5-35b.yml", "(?m)^image:.*", "image: [")
    row = diagnose(project)
    assert (row["exit"], bool(re.fullmatch(FAST, row["summary"]))) == (0, True)
    unknown = {cause["cause"]: cause["evidence"] for cause in row["causes"] if cause["verdict"] == "unknown"}
    assert "recipes/qwen3.5-35b.yml" in unknown["the host's recipe can't be read"]


def test_a_host_without_a_server_and_one_whose_docker_is_down(project: SandboxProject) -> None:
    nowhere = 'connection: local\nuser: root\nserve_port: 9\nenv: {DOCKER_HOST: "unix:///nowhere.sock"}\n'
    (project.root / "hosts/bare.yml").write_text(nowhere)
    (project.root / "hosts/down.yml").write_text(f"recipe: qwen3.5-35b\n{nowhere}")
    bare, down = (json.loads(project.run("diagnose", "--host", item, "--json").out) for item in ("bare", "down"))
    assert bare["summary"] == "no server is known: nothing has been deployed, and the host has no recipe"
    assert bare["exit"] == 4
    message = "no server answers at http://127.0.0.1:9: no answer from the Docker Engine at unix:///nowhere.sock"
    assert down["summary"].startswith(message)
    assert (down["exit"], down["causes"][0]["cause"]) == (1, "no answer from the Docker Engine")
    assert "systemctl start docker" in down["causes"][0]["fix"]


def test_a_server_is_measured_without_its_docker_engine(project: SandboxProject) -> None:
    project.deployed()
    with (project.root / "hosts/sandbox.yml").open("a") as file:
        file.write('env: {DOCKER_HOST: "unix:///nowhere.sock"}\n')
    row = diagnose(project)
    assert re.match(FAST + r"; but no answer from the Docker Engine: .*", row["summary"]), row["summary"]
    assert row["exit"] == 1


def test_the_screen_starts_with_the_summary_and_cuts_nothing_at_eighty_columns(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = project.run("diagnose", "--host", "sandbox")
    assert result.code == 1
    assert result.out.splitlines()[0].startswith("no server answers: there is no container qwen35")
    project.deployed()
    control.set_fault(project.sandbox, "power")
    result = project.run("diagnose", "--host", "sandbox")
    first, *rest = result.out.splitlines()
    assert first.startswith("slow: 5.7 of ")
    assert max(map(len, rest)) <= 80 and "…" not in result.out
    verdicts = [line.split()[0] for line in rest if line and not line.startswith(" ")]
    assert {"found", "possible", "noted", "unknown", "ruled"} <= set(verdicts)
    group = project.run("diagnose", "--host", "all")
    assert {"sandbox:", "spark1:"} <= {line.split()[0] for line in group.out.splitlines() if line}
