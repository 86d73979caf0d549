"""Any bytes from a host become events that every subscriber accepts, without an exception, a hang or unbounded memory."""

import io
import json
from typing import Any

from rich.console import Console

from sparkwright.console.events.host_lines import HostLines
from sparkwright.console.events.lines import TaskLines
from sparkwright.console.events.live_lines import LiveTaskLines
from sparkwright.console.events.subscriber import JsonLines
from sparkwright.console.events.tables import ResultTables
from sparkwright.errors import Exit
from sparkwright.protocol.event_reader import EventReader, parse_line
from sparkwright.protocol.event_shapes import EVENT_FIELDS
from sparkwright.protocol.events import Event
from sparkwright.visible import escape_invisible
from tests.fuzz.harness import damaged_texts, damaged_values, feed

HOST = "spark1"
DIFF = [{"field": "image", "before": "a\nb", "after": "a\nc", "why": "pinned"}]
ROWS = [{"check": "generates", "verdict": "proved", "figure": "41 tok/s", "evidence": "64 tokens", "fix": ""}]
TASK = {"task": "t1", "name": "Pull image", "module": "verdict", "where": "playbooks/deploy.yml:3", "status": "failed"}
COUNTS = {"ok": 3, "changed": 1, "failed": 0, "skipped": 2, "unreachable": 0}
RECORD = {"state": "ok", "why": "", "time_s": 1.7e9, "since_s": 1.7e9, "seen": "ok"}

EVENTS: list[dict[str, Any]] = [
    {"event": "run_started", "time": 1.7e9, "run": "r1", "play": "Deploy", "check": True, "who": "a@b", "sandbox": True},
    {"event": "task_started", "time": 1.7e9, "task": "t1", "name": "Pull image", "module": "docker_image", "where": ""},
    {"event": "progress", "time": 1.7e9, "task": "t1", "done": 10**9, "total": 2e10, "unit": "bytes", "text": "pulling"},
    {"event": "note", "time": 1.7e9, "task": "", "text": "waiting"},
    {"event": "task_finished", "time": 1.7e9, **TASK, "msg": "no", "fix": "do", "diff": DIFF, "exit": 1, "seconds": 3.2,
     "data": {"rows": ROWS, "evidence": ["a", "b"], "engine_version": "0.32.0"}, "register": "x", "registered": {"a": 1}},
    {"event": "recap", "time": 1.7e9, **COUNTS, "exit": 0, "seconds": 12.5, "msg": "", "rescued": 0, "ignored": 1},
    {"event": "run", "time": 1.7e9, "run": "r1", "play": "Deploy", "who": None, "check": False, "state": "exit 0"},
    {"event": "status", "time": 1.7e9, "record": RECORD, "live": False, "late": False, "busy": "",
     "memory_available_bytes": 10**11, "memory_total_bytes": None},
    {"event": "checks", "time": 1.7e9, "fields": ["time_s", "state"], "rows": [[1.7e9, "ok"]]},
    {"event": "history", "time": 1.7e9, "at": 1.7e9, "what": "verified", "changed": DIFF, "measured": {"tok_per_s": 41.0}},
    {"event": "file", "time": 1.7e9, "incident": "20260101T000000-a", "name": "about.json", "text": "{}"},
    {"event": "lock", "time": 1.7e9, "owner": {"run": "r1", "who": "a@b"}, "alive": True, "text": "a@b runs deploy"},
    {"event": "runtime_missing", "path": "/usr/bin/python3", "python": "3.12", "machine": "aarch64"},
    {"event": "no_python"},
    {"event": "ready"},
    {"event": "shipped"},
    {"event": "not_shipped", "why": "no room"},
    {"event": "part", "n": 1, "of": 1, "text": '{"event": "note", "text": "x"}'},
    {"event": "alive", "time": 1.7e9},
    {"event": "raw", "text": "Traceback"},
]  # fmt: skip
LINES = [json.dumps(event).encode() + b"\n" for event in EVENTS]


def show_events(events: list[Event]) -> None:
    """Pass the events to every subscriber, and check the exit code, as the fleet does."""

    def write(style: str, text: str) -> None: ...

    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    subscribers = (
        TaskLines(diff=True, write=write),
        HostLines(write=write),
        ResultTables(write),
        JsonLines(io.StringIO()),
        LiveTaskLines(diff=True, console=screen),
    )
    for subscriber in subscribers:
        if hasattr(subscriber, "set_hosts"):
            subscriber.set_hosts([HOST, "spark2"])
        for event in events:
            try:
                subscriber.on({**event, "host": HOST})
            except ValueError as error:
                assert isinstance(subscriber, ResultTables), error  # invalid rows are reported instead of shown
        subscriber.close()
    for event in events:
        assert event["event"] in EVENT_FIELDS and event["event"] != "part"
        text = json.dumps(event, ensure_ascii=False)
        assert escape_invisible(text) == text
        if event["event"] == "recap":
            Exit(event["exit"])


def test_the_example_of_each_event_is_parsed_unchanged() -> None:
    assert {event["event"] for event in EVENTS} == set(EVENT_FIELDS)
    for value, line in zip(EVENTS, LINES, strict=True):
        assert parse_line(line).items() >= value.items()


def receive_and_show(data: bytes) -> None:
    """Read the bytes and show the events, as the laptop does."""
    reader = EventReader()
    show_events([*reader.feed(data), *reader.end()])


def test_damaged_events() -> None:
    feed(lambda value: receive_and_show(json.dumps(value).encode()), damaged_values(EVENTS))


def test_damaged_lines() -> None:
    feed(receive_and_show, damaged_texts(LINES))


def receive_in_pieces(data: bytes) -> None:
    """Pass a complete answer to the reader in pieces."""
    reader, size = EventReader(), 1 + len(data) % 997
    events = [event for start in range(0, len(data), size) for event in reader.feed(data[start : start + size])]
    for event in (*events, *reader.end()):
        assert event["event"] in EVENT_FIELDS and event["event"] != "part"


def test_damaged_streams() -> None:
    feed(receive_in_pieces, damaged_texts([b"".join(LINES), b"".join(LINES[:5]) + LINES[5]]))
