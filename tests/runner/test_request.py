"""Requests on standard input of the runner, started as on a host: a refusal or an answer, never a traceback."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, decode
from sparkwright.protocol.plan import Plan, Task

PLAN = Plan("r1", "spark1", "Test", (Task("t1", "Say", "fail", {"msg": "no"}),), exclusive=False).to_json()


def send_request(home: Path, line: bytes) -> tuple[list[Event], str]:
    completed = subprocess.run(
        [sys.executable, "-m", "sparkwright.runner.main"],
        input=line,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [decode(item) for item in completed.stdout.splitlines()], completed.stderr.decode()


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "no verb": b"{}",
    "a verb of another type": b'{"verb": 5}',
    "an unknown verb": b'{"verb": "\\u001b]52;c;aGk=\\u0007"}',
    "deep nesting": b"[" * 100_000,
    "bytes": b"\xff\xfe\x00",
    "an environment that is none": b'{"verb": "status", "env": {"A=B": "x"}}',
    "an environment with a NUL": b'{"verb": "runs", "env": {"A": "\\u0000"}}',
    "secrets that are none": b'{"verb": "run", "secrets": ["a"]}',
    "a flag that is none": b'{"verb": "status", "gateway": "yes"}',
    "a number that is none": b'{"verb": "checks", "since_s": NaN}',
    "a module that answers no question": b'{"verb": "ask", "module": "command", "args": {"argv": ["true"]}}',
    "a question without a name": b'{"verb": "ask"}',
    "no plan": b'{"verb": "run"}',
    "a restart plan that is none": json.dumps({"verb": "run", "plan": PLAN, "restart": [1]}).encode(),
    "a plan of another schema": b'{"verb": "run", "plan": {"schema": 99}}',
    "a run id that is a path": json.dumps({"verb": "run", "plan": {**PLAN, "run_id": "../../x"}}).encode(),
    "a step that is none": json.dumps({"verb": "run", "plan": {**PLAN, "steps": [5]}}).encode(),
    "a condition that is none": json.dumps(
        {"verb": "run", "plan": {**PLAN, "steps": [{"id": "b", "name": "b", "when": 5}]}}
    ).encode(),
    "an argument that is not there": json.dumps(
        {"verb": "run", "plan": {**PLAN, "steps": [{"id": "t", "name": "t", "module": "facts", "open": ["x"]}]}}
    ).encode(),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_request_is_refused(tmp_path: Path, what: str) -> None:
    result, errors = send_request(tmp_path, MALFORMED[what])
    assert errors == ""
    assert [item["event"] for item in result] == ["recap"]
    assert "invalid" in result[0]["msg"] or "is not valid" in result[0]["msg"]
    assert result[0]["exit"] in (1, 5)
    assert "\x1b" not in result[0]["msg"]


def test_proxy_with_a_password_is_passed_on_and_masked(tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$HTTPS_PROXY $NOT_PASSED" >proxy; cat proxy; cut -d: -f3 proxy | cut -d@ -f1']
    command[2] = command[2].replace("proxy;", f"{tmp_path}/proxy;").replace(" proxy |", f" {tmp_path}/proxy |")
    plan = Plan("r1", "spark1", "Test", (Task("t1", "Say", "command", {"argv": command}),), exclusive=False).to_json()
    secrets = {"HTTPS_PROXY": "http://ops:Tr0ub4dor-3@proxy:3128", "NOT_PASSED": "x" * 20}
    result, _ = send_request(tmp_path, json.dumps({"verb": "run", "plan": plan, "secrets": secrets}).encode())
    assert (tmp_path / "proxy").read_text() == "http://ops:Tr0ub4dor-3@proxy:3128 \n"
    assert result[-1]["exit"] == 0
    (finished,) = (item for item in result if item["event"] == "task_finished")
    assert finished["data"]["out"] == "•••• \n••••"
    files = b"".join(path.read_bytes() for path in (tmp_path / ".local").rglob("*") if path.is_file())
    assert b"Tr0ub4dor" not in files


def begin_run(state: StateFolder, name: str, ago_s: float) -> Journal:
    run_journal = Journal.begin(state, name, {"host": "spark1"}, ())
    began_s = time.time() - ago_s
    os.utime(run_journal.folder / "plan.json", (began_s, began_s))
    return run_journal


def request_stop(home: Path, run: str = "") -> dict[str, Any]:
    return send_request(home, json.dumps({"verb": "stop", "run": run}).encode())[0][-1]


def test_stop_selects_the_run_with_the_lock(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    deploy, question = begin_run(state, "deploy", 60), begin_run(state, "question", 30)
    ended = begin_run(state, "newest", 1)
    deploy.open()
    question.open()
    ended.release_lock()
    os.utime(ended.folder, (0, 0))
    with lock.acquire(state, lock.LockOwner("deploy", "a@b", "deploy", os.getpid(), 1.0), host="spark1"):
        assert request_stop(tmp_path)["text"] == "run deploy will stop at the next safe point"
    assert (deploy.stop_requested(), question.stop_requested()) == (True, False)


def test_stop_selects_the_only_run_and_refuses_to_choose(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    value, ended = begin_run(state, "one", 60), begin_run(state, "newest", 1)
    value.open()
    ended.release_lock()
    os.utime(ended.folder, (0, 0))
    assert request_stop(tmp_path)["text"] == "run one will stop at the next safe point"
    two = begin_run(state, "two", 5)
    two.open()
    result = request_stop(tmp_path)
    assert (result["exit"], "several runs in progress: two, one" in result["msg"]) == (5, True)
    assert request_stop(tmp_path, "two")["text"].startswith("run two will stop")
    assert "no run three" in request_stop(tmp_path, "three")["msg"]
    assert journal.is_running(value.folder)


def test_secrets_are_masked_in_answers_and_files(tmp_path: Path) -> None:
    secret = "gehëim-'zqx"
    task = Task("t1", "Say", "command", {"argv": ["printf", "%s", json.dumps({"key": secret})]})
    plan = Plan(
        "r1", "spark1", "Test", (task, Task("t2", secret, "command", {"argv": [f"/{secret}"]})), exclusive=False
    ).to_json()
    result, _ = send_request(tmp_path, json.dumps({"verb": "run", "plan": plan, "secrets": {"KEY": secret}}).encode())
    assert result[-1]["event"] == "recap"
    files = [
        path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("ballast", "alive")
    ]
    for text in (json.dumps(result, ensure_ascii=False), *files):
        assert "zqx" not in text, text
    refused, _ = send_request(
        tmp_path, json.dumps({"verb": "attach", "run": secret, "secrets": {"KEY": secret}}).encode()
    )
    assert "zqx" not in refused[0]["msg"]
