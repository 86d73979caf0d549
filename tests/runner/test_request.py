"""Requests on the runner's standard input, as on a host: an answer or a refusal, never a traceback."""

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


def build_plan(*argvs: list[str]) -> dict[str, Any]:
    tasks = [Task(f"t{n}", "Say", "command", {"argv": argv}) for n, argv in enumerate(argvs, 1)]
    return Plan("r1", "spark1", "Test", tuple(tasks), exclusive=False).to_json()


def send_request(home: Path, line: bytes) -> tuple[list[Event], str]:
    """Return the runner's events and its standard error."""
    completed = subprocess.run(
        [sys.executable, "-m", "sparkwright.runner.main"],
        input=line,
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [decode(item) for item in completed.stdout.splitlines()], completed.stderr.decode()


def run_request(plan: dict[str, Any], **header: Any) -> bytes:
    return json.dumps({"verb": "run", "plan": {**PLAN, **plan}, **header}).encode()


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "list": b"[]",
    "no verb": b"{}",
    "verb of another type": b'{"verb": 5}',
    "unknown verb": b'{"verb": "\\u001b]52;c;aGk=\\u0007"}',
    "deep nesting": b"[" * 100_000,
    "bytes": b"\xff\xfe\x00",
    "invalid environment": b'{"verb": "status", "env": {"A=B": "x"}}',
    "environment with a NUL": b'{"verb": "runs", "env": {"A": "\\u0000"}}',
    "invalid secrets": b'{"verb": "run", "secrets": ["a"]}',
    "invalid flag": b'{"verb": "status", "gateway": "yes"}',
    "invalid number": b'{"verb": "checks", "since_s": NaN}',
    "module that is no query": b'{"verb": "ask", "module": "command", "args": {"argv": ["true"]}}',
    "query without a module": b'{"verb": "ask"}',
    "no plan": b'{"verb": "run"}',
    "invalid restart plan": run_request({}, restart=[1]),
    "plan of another schema": b'{"verb": "run", "plan": {"schema": 99}}',
    "path as run id": run_request({"run_id": "../../x"}),
    "invalid step": run_request({"steps": [5]}),
    "invalid condition": run_request({"steps": [{"id": "b", "name": "b", "when": 5}]}),
    "missing argument": run_request({"steps": [{"id": "t", "name": "t", "module": "facts", "open": ["x"]}]}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_refused(tmp_path: Path, name: str) -> None:
    result, errors = send_request(tmp_path, MALFORMED[name])
    assert errors == ""
    assert [item["event"] for item in result] == ["recap"]
    assert "invalid" in result[0]["msg"] or "is not valid" in result[0]["msg"]
    assert result[0]["exit"] in (1, 5)
    assert "\x1b" not in result[0]["msg"]


def test_proxy_with_a_password_is_passed_on_and_masked(tmp_path: Path) -> None:
    script = f'cd {tmp_path}; echo "$HTTPS_PROXY $NOT_PASSED" >proxy; cat proxy; cut -d: -f3 proxy | cut -d@ -f1'
    secrets = {"HTTPS_PROXY": "http://ops:Tr0ub4dor-3@proxy:3128", "NOT_PASSED": "x" * 20}
    result, _ = send_request(tmp_path, run_request(build_plan(["sh", "-c", script]), secrets=secrets))
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


def create_ended_run(state: StateFolder) -> None:
    ended = begin_run(state, "newest", 1)
    ended.release_lock()
    os.utime(ended.folder, (0, 0))


def request_stop(home: Path, run: str = "") -> dict[str, Any]:
    return send_request(home, json.dumps({"verb": "stop", "run": run, "host": "spark1"}).encode())[0][-1]


def test_stop_selects_the_run_with_the_lock(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    deploy, question = begin_run(state, "deploy", 60), begin_run(state, "question", 30)
    create_ended_run(state)
    deploy.open()
    question.open()
    with lock.acquire(state, lock.LockOwner("deploy", "a@b", "deploy", os.getpid(), 1.0), host="spark1"):
        assert request_stop(tmp_path)["text"] == "run deploy will stop at the next safe point"
    assert (deploy.stop_requested(), question.stop_requested()) == (True, False)


def test_stop_selects_the_only_run_and_refuses_to_choose(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    first = begin_run(state, "one", 60)
    first.open()
    create_ended_run(state)
    assert request_stop(tmp_path)["text"] == "run one will stop at the next safe point"
    second = begin_run(state, "two", 5)
    second.open()
    result = request_stop(tmp_path)
    assert (result["exit"], "several runs in progress: two, one" in result["msg"]) == (5, True)
    assert request_stop(tmp_path, "two")["text"].startswith("run two will stop")
    assert "Name one: `invoke stop --host spark1 --run RUN`." in result["msg"]
    unknown = request_stop(tmp_path, "three")["msg"]
    assert unknown == "no run three on this host. `invoke runs --host spark1` lists them."
    assert journal.is_running(first.folder) and journal.is_running(second.folder)


def test_secrets_are_masked_in_answers_and_files(tmp_path: Path) -> None:
    secret = "gehëim-'zqx"
    plan = build_plan(["printf", "%s", json.dumps({"key": secret})], [f"/{secret}"])
    plan["steps"][1]["name"] = secret
    result, _ = send_request(tmp_path, run_request(plan, secrets={"KEY": secret}))
    assert result[-1]["event"] == "recap"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("ballast", "alive")]
    for text in (json.dumps(result, ensure_ascii=False), *(path.read_text() for path in files)):
        assert "zqx" not in text, text
    attach = {"verb": "attach", "run": secret, "secrets": {"KEY": secret}}
    refused, _ = send_request(tmp_path, json.dumps(attach).encode())
    assert "zqx" not in refused[0]["msg"]
