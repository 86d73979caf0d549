"""Damaged standard input: a request is parsed or refused, and a plan is refused or runs to its recap."""

import json
from pathlib import Path
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, decode, encode
from sparkwright.protocol.plan import Block, Plan, Step, Task
from sparkwright.runner import request as requests
from sparkwright.runner.play import PlayRun
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor
from tests.fuzz.harness import damaged_values, feed, feed_json

INNER = Block("b2", "inner", (Task("t5", "e", "fail", {"msg": "{{ a }}"}, open=("msg",)),), when=("a == 'b'",))
STEPS: tuple[Step, ...] = (
    Task("t1", "a", "fail", {"msg": "no"}, register="a", ignore_errors=True, tags=("x",)),
    Block(
        "b1",
        "swap",
        (Task("t2", "b", "fail", {"msg": "{{ a.msg }}"}, open=("msg",), until=("a.failed",), delay_s=0), INNER),
        rescue=(Task("t3", "c", "fail", {"msg": "{{ v }}"}, open=("msg",), when=("v != 'x'",), failed_when=("v",)),),
        always=(Task("t4", "d", "fail", {"msg": "d"}, changed_when=("True",), notify=("h",)),),
        when=("a.failed or not v",),
        where="play.yml:3",
    ),
)
PLAN = Plan(
    "r1", "spark1", "Test", STEPS, handlers=(Task("h1", "h", "fail", {"msg": "h"}),),
    vars={"x": 1, "deep": {"a": [1, "b"]}}, open_vars={"v": "{{ w }}{{ x }}", "w": "{{ a.msg }}"},
    secrets=("HF_TOKEN",), who="a@b",
).to_json()  # fmt: skip
HEADERS: list[Any] = [
    {"verb": "run", "plan": PLAN, "env": {"HF_ENDPOINT": "http://x"}, "secrets": {"HF_TOKEN": "hf_0123456789"}},
    {"verb": "attach", "run": "20261122T100000-0a0b0c0d"},
    {"verb": "stop", "run": ""},
    {"verb": "health", "smoke": True, "token_s": 3.5},
    {"verb": "checks", "since_s": 1e9},
    {"verb": "unlock", "how": "kill", "run": "x"},
]
HIDDEN = Redactor(["hf_0123456789", "geheim '\" ë"])


def run_plan(data: Any, home: Path) -> None:
    """Run a plan in this process. Its modules can only fail."""
    if not isinstance(data, dict):
        return
    try:
        plan = Plan.from_json(data)
    except (ValueError, RecursionError):
        return
    if _waits_long(data) or _has_side_effects(data):
        return
    events: list[Event] = []
    secrets = {"HF_TOKEN": Secret("hf_0123456789")}
    recap = PlayRun(plan, Machine(home=home), StateFolder(home / "state"), secrets, events.append).run()
    assert recap["event"] == "recap" and recap["exit"] in range(6)
    for event in (*events, recap):
        assert decode(encode(event, HIDDEN))["event"] == event["event"]


def _waits_long(data: Any) -> bool:
    """Return True if a task would pause or retry many times, which is valid but takes too long for a test."""
    if isinstance(data, dict):
        retries = data.get("retries")
        is_retried = bool(retries or data.get("until"))
        waits = "module" in data and data.get("delay_s", 5) > 0 and is_retried
        return waits or (isinstance(retries, int) and retries > 5) or any(map(_waits_long, data.values()))
    return isinstance(data, list) and any(map(_waits_long, data))


def _has_side_effects(data: Any) -> bool:
    """Return True if a damaged task names a module with side effects."""
    if isinstance(data, dict):
        return data.get("module", "fail") in ("command", "file") or any(map(_has_side_effects, data.values()))
    return isinstance(data, list) and any(map(_has_side_effects, data))


def test_damaged_requests() -> None:
    feed_json(requests.parse, HEADERS)


def test_damaged_plans(tmp_path: Path) -> None:
    feed(lambda value: run_plan(value, tmp_path), damaged_values([PLAN]))


def test_redaction_keeps_the_structure_of_events() -> None:
    event: Event = {"event": "task_finished", "task": "t1", "status": "ok", "msg": "geheim '\" ë"}
    event["data"] = {"k": ["hf_0123456789"]}

    def read(value: Any) -> None:
        if isinstance(value, dict) and isinstance(value.get("event"), str):
            message = decode(encode(value, HIDDEN))
            assert message["event"].encode(errors="replace") or not value["event"]
            redacted = {name: part for name, part in message.items() if name not in ("event", "task", "status")}
            assert "hf_0123456789" not in json.dumps(redacted)

    feed(read, damaged_values([event]))
