"""`diagnose` on the sandbox: for each thing that can be wrong its first sentence, exit code and the cause it ranks first."""

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import pytest

from sparkwright.console.rows import Diagnosis
from sparkwright.health import settings
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import SandboxProject, sandbox_project

FAST = r"not slow: 4\d(\.\d)? of 4\d(\.\d)? tok/s"
EXITED = r"no server answers: (crash loop: )?qwen35 exited (\(1\) )?\d+ s ago.*its last line: \"RuntimeError: .*\""
SETTLES_S = 60.0
#: between two diagnoses of a server that needs its time
PAUSE_S = 1.0


@dataclass(frozen=True)
class Case:
    """do: what happens to the server, or the name of a fault. first: the whole first line. cause: what stands first of the
    causes that count, as VERDICT: NAME; empty where none does. until: the state that it comes to."""

    do: str
    code: int
    first: str
    cause: str = ""
    until: str = ""


#: faults that leave the server as it was stand in states.yml
CASES = (
    Case("none", 0, FAST),
    Case("slow", 1, r"slow: 5\.7 of 4\d.* tok/s; no measured cause", "possible: a stale compile cache"),
    Case("power", 1, r"slow: 5\.7 of 4\d.* tok/s; the GPU is held at a low clock.*712 MHz.*", "found: the GPU is held"),
    Case("hot", 1, FAST + r"; but the GPU is too hot: .*96 .*", "found: the GPU is too hot"),
    Case("no-space", 1, FAST + r"; but the disk is full: 0\.0 GiB free on the disk", "found: the disk is full"),
    Case("wedge", 1, r"no token: the server is wedged: /health returns 200.* within 3 s", "found: the engine is hung"),
    Case("crash-loop", 1, EXITED, "found: a kernel accessed invalid memory", until="crash-looping"),
    Case(
        "slow-start", 1, r"no server answers: slow start: qwen35 has been starting for \d+ s.*", "found:", "slow start"
    ),
    Case("engine-exits", 1, r"no server answers: .*qwen35 exited \(\d\) \d+ s ago.*", "found:"),
    Case(
        "stop",
        1,
        r"no server answers: qwen35 exited \(0\) \d+ s ago, its last line: \".*\"",
        "possible: it was stopped",
    ),
    Case("kill", 1, r"no server answers: qwen35 exited \(137\) \d+ s ago, its last line: \".*\"", "possible: it was"),
    Case(
        "half-model",
        1,
        FAST + r"; but it differs from the verified state: .*model-00007.*",
        "found: it differs from the verified state",
    ),
    Case("remove_container", 1, r"no server answers: there is no container qwen35"),
)
REUSABLE_ENDS = ("stop", "kill", "remove_container")


@pytest.fixture(scope="module")
def served() -> Iterator[SandboxProject]:
    """Deploy one server for all tests."""
    before = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED")
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    try:
        with sandbox_project() as project:
            project.deployed()
            yield project
    finally:
        os.environ.pop("SPARKWRIGHT_SANDBOX_SPEED")
        if before is not None:
            os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = before


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
    """A running server again, whatever was done to it."""
    control.set_fault(project.sandbox, None)
    if project.containers() == ["qwen35 running"]:
        project.docker().api.restart("qwen35")
    else:
        project.docker().api.start("qwen35")
    wait_for_health(project)


def wait_for_health(project: SandboxProject) -> None:
    """Wait for /health."""
    deadline_s = time.monotonic() + SETTLES_S
    while time.monotonic() < deadline_s:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", project.port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("no server came up")


def diagnose_case(project: SandboxProject, case: Case) -> dict[str, Any]:
    """Do it, and the diagnosis of what it has come to."""
    if case.do in REUSABLE_ENDS:
        getattr(project.docker().api, case.do)("qwen35", **({"force": True} if case.do == "remove_container" else {}))
    else:
        control.set_fault(project.sandbox, None if case.do == "none" else case.do)
    row = diagnose(project)
    deadline_s = time.monotonic() + SETTLES_S
    while case.until and row["state"] != case.until and time.monotonic() < deadline_s:
        assert row["exit"] in (1, 4), row["summary"]  # never green on its way there
        time.sleep(PAUSE_S)
        row = diagnose(project)
    return row


@pytest.mark.parametrize("case", CASES, ids=[case.do for case in CASES])
def test_the_first_sentence_is_the_truth_with_its_code_and_cause(served: SandboxProject, case: Case) -> None:
    row = diagnose_case(served, case)
    try:
        assert re.fullmatch(case.first, row["summary"]), json.dumps(row, indent=1)
        assert row["exit"] == case.code
        counted = [
            f"{cause['verdict']}: {cause['cause']}"
            for cause in row["causes"]
            if cause["verdict"] in ("found", "possible")
        ]
        assert counted[0].startswith(case.cause) if case.cause else not counted, counted
        assert all(cause["evidence"] for cause in row["causes"])
        assert list(row) == [field.name for field in fields(Diagnosis)]
    finally:
        if case.code and case.do != "remove_container":
            restore_server(served)
        else:
            control.set_fault(served.sandbox, None)


# -- without disturbing anybody ----------------------------------------------------------------------------------------


@contextmanager
def open_stream(port: int, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A client's stream that has begun."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens}
    command = json.dumps({**body, "ignore_eos": True, "stream": True})
    connection.request("POST", "/v1/chat/completions", command, {"Content-Type": "application/json"})
    try:
        answer = connection.getresponse()
        answer.readline()
        yield answer
    finally:
        connection.close()


def count_requests(project: SandboxProject) -> int:
    """Return the number of answers that the server has begun, by its log."""
    log = project.docker().api.logs("qwen35")
    return int(log.count(b"/v1/chat/completions HTTP/1.1"))


def test_beside_the_load_of_another_nothing_is_asked_and_that_is_said(project: SandboxProject) -> None:
    project.deployed()
    with open_stream(project.port, 4000) as answer:
        before = count_requests(project)
        row = diagnose(project)
        assert answer.readline() is not None
        assert count_requests(project) == before
    assert re.fullmatch(r"not measured: 1 request running at [\d.]+ tok/s in total; .*", row["summary"])
    assert (row["state"], row["exit"], row["tok_per_s"]) == ("busy", 4, None)


def test_beside_a_run_nothing_is_asked_and_the_run_is_named(project: SandboxProject) -> None:
    project.deployed()
    before = count_requests(project)
    owner = lock.LockOwner("deploy", "ada@laptop", "20260101T000000-ab", os.getpid(), time.time())
    with lock.acquire(StateFolder(project.sandbox / "home/.local/state/sparkwright"), owner, host="sandbox"):
        row = diagnose(project)
        project.docker().api.stop("qwen35")
        stopped = diagnose(project)
    assert re.match(r"in progress: deploy by ada@laptop, since .*; /health answers; not measured", row["summary"])
    assert re.match(
        r"in progress: deploy by ada@laptop, since .*; no server answers: qwen35 exited", stopped["summary"]
    )
    assert (row["exit"], stopped["exit"], count_requests(project)) == (4, 4, before)


def test_a_server_that_hangs_while_others_wait_is_watched_until_it_is_sure(project: SandboxProject) -> None:
    project.deployed()

    def hang() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", project.port, timeout=60)
        body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 5000}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            connection.getresponse()
        except OSError:
            pass

    threading.Thread(target=hang, daemon=True).start()
    while not has_running_requests(read_metrics(project)):
        time.sleep(0.05)
    control.set_fault(project.sandbox, "wedge")
    row = diagnose(project, "--token-s", "1")
    assert re.match(r"unknown whether it is wedged: 1 request running, no token for \d+ s; .*", row["summary"])
    assert (row["state"], row["exit"]) == ("unknown", 4)

    folder = StateFolder(project.sandbox / "home/.local/state/sparkwright")
    folder.write(settings.NAME, {"limits": {"frozen_s": 1.0}})
    row = diagnose(project)
    assert re.match(r"no token: the server is wedged: 1 request running, no token for \d+ s", row["summary"])
    assert (row["state"], row["exit"]) == ("stalled", 1)


def read_metrics(project: SandboxProject) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", project.port, timeout=5)
    connection.request("GET", "/metrics")
    return connection.getresponse().read()


def has_running_requests(text: bytes) -> bool:
    return any(
        line.startswith(b"vllm:num_requests_running") and not line.endswith(b" 0.0") for line in text.splitlines()
    )


# -- with what is left -------------------------------------------------------------------------------------------------


def test_neither_lock_nor_registry_nor_recipe_is_needed_and_what_is_not_known_is_said(project: SandboxProject) -> None:
    project.deployed()
    pinned = [path.unlink() for path in project.root.rglob("spark.lock")]
    assert pinned
    project.edit("recipes/qwen3.5-35b.yml", "(?m)^image:.*", "image: no.such.registry.invalid/vllm:v1")
    row = diagnose(project)
    assert re.fullmatch(FAST, row["summary"])
    assert not list(project.root.rglob("spark.lock"))

    project.edit("recipes/qwen3.5-35b.yml", "(?m)^image:.*", "image: [")
    row = diagnose(project)
    assert (row["exit"], bool(re.fullmatch(FAST, row["summary"]))) == (0, True)
    unknown = {cause["cause"]: cause["evidence"] for cause in row["causes"] if cause["verdict"] == "unknown"}
    assert "recipes/qwen3.5-35b.yml" in unknown["the host's recipe can't be read"]


def test_a_host_without_docker_and_one_whose_docker_is_down_are_told_apart_from_slow_ones(
    project: SandboxProject,
) -> None:
    nowhere = 'connection: local\nuser: root\nserve_port: 9\nenv: {DOCKER_HOST: "unix:///nowhere.sock"}\n'
    (project.root / "hosts/bare.yml").write_text(nowhere)
    (project.root / "hosts/down.yml").write_text(f"recipe: qwen3.5-35b\n{nowhere}")
    bare, down = (json.loads(project.run("diagnose", "--host", item, "--json").out) for item in ("bare", "down"))
    assert bare["summary"] == "no server known: nothing deployed, and the host has no recipe"
    assert bare["exit"] == 4
    assert re.match(
        r"no server answers at http://127.0.0.1:9: no answer from the Docker Engine at unix:///nowhere.sock",
        down["summary"],
    )
    assert (down["exit"], down["causes"][0]["cause"]) == (1, "no answer from the Docker Engine")
    assert "systemctl start docker" in down["causes"][0]["fix"]


def test_a_server_goes_on_being_measured_when_its_docker_engine_does_not_answer(project: SandboxProject) -> None:
    project.deployed()
    control.up(project.sandbox)
    (project.root / "hosts/sandbox.yml").write_text(
        (project.root / "hosts/sandbox.yml").read_text() + 'env: {DOCKER_HOST: "unix:///nowhere.sock"}\n'
    )
    row = diagnose(project)
    assert re.match(FAST + r"; but no answer from the Docker Engine: .*", row["summary"]), row["summary"]
    assert row["exit"] == 1


# -- on the screen -----------------------------------------------------------------------------------------------------


def test_nothing_is_cut_at_eighty_columns_and_the_sentence_comes_first(
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
    assert max(map(len, rest)) <= 80
    assert "…" not in result.out
    verdicts = [line.split()[0] for line in rest if line and not line.startswith(" ")]
    assert {"found", "possible", "noted", "unknown", "ruled"} <= set(verdicts)
    group = project.run("diagnose", "--host", "all")
    assert {"sandbox:", "spark1:"} <= {line.split()[0] for line in group.out.splitlines() if line}
