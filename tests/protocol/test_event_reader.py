"""A host's output becomes events of known kinds, size-limited and escaped; no input raises an exception."""

import json
import time
import tracemalloc
from typing import Any

import pytest

from sparkwright.protocol.event_reader import MAX_CHARACTERS, EventReader, parse_line
from sparkwright.protocol.events import MAX_LINE_BYTES, PART_CHARACTERS, Event, encode_lines, event


def read_events(*chunks: bytes) -> list[Event]:
    reader = EventReader()
    return [*(item for chunk in chunks for item in reader.feed(chunk)), *reader.end()]


def note_line(**fields: Any) -> bytes:
    return json.dumps({"event": "note", "time": 5.0, "text": "x", **fields}).encode() + b"\n"


def test_event_longer_than_a_line_is_complete() -> None:
    text = 'quotes ", backslashes \\, ünïcode 💡 \x9b and \x1b\n' * 100_000
    wire = list(encode_lines(event("note", task="", text=text)))
    assert len(wire) > 1
    assert max(map(len, wire)) <= MAX_LINE_BYTES
    (note,) = read_events(*wire)
    assert note["text"].startswith('quotes ", backslashes \\, ünïcode 💡 \\x9b and \\x1b\nquotes')


def test_short_event_is_a_single_line() -> None:
    assert len(list(encode_lines(event("note", task="", text="x" * 900_000)))) == 1


def test_lone_surrogate_is_escaped() -> None:
    (note,) = read_events(*encode_lines(event("note", task="", text="a\udcffb")))
    assert note["text"] == "a\\udcffb"


@pytest.mark.parametrize(
    "parts", [[(1, 3), (3, 3)], [(2, 2)], [(1, 2), (1, 2), (3, 3)], [(0, 0)], [(1, 1), (1, 1)]], ids=str
)
def test_parts_in_the_wrong_order_are_no_event(parts: list[tuple[int, int]]) -> None:
    text = note_line().decode()[:20]
    wire = [json.dumps({"event": "part", "n": n, "of": of, "text": text}).encode() + b"\n" for n, of in parts]
    assert {item["event"] for item in read_events(*wire)} <= {"raw"}


def test_endless_parts_are_not_buffered() -> None:
    reader, text = EventReader(), "x" * PART_CHARACTERS
    tracemalloc.start()
    for n in range(1, 600):
        list(reader.feed(json.dumps({"event": "part", "n": n, "of": 10**6, "text": text}).encode() + b"\n"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_CHARACTERS


def test_long_line_is_cut_for_any_chunk_size() -> None:
    long = b"A" * (3 * MAX_LINE_BYTES)
    for size in (1000, 65536, len(long) + 7):
        wire = long + b"\n" + note_line()
        first, last = read_events(*(wire[at : at + size] for at in range(0, len(wire), size)))
        assert f"{2 * MAX_LINE_BYTES} more bytes" in first["text"]
        assert last["text"] == "x"


def test_nested_texts_and_keys_are_escaped() -> None:
    event = parse_line(
        json.dumps(
            {"event": "task_finished", "task": "t", "name": "a\nb", "module": "m", "status": "ok",
             "data": {"\x1b]0;": ["\x9b2J", {"\u202e": "\x00"}]}}
        ).encode()
    )  # fmt: skip
    assert event["data"] == {"\\x1b]0;": ["\\x9b2J", {"\\u202e": "\\x00"}]}
    assert event["name"] == "a\\nb"


@pytest.mark.parametrize("invalid", [1e300, -1, "now", None, [], True, 10**30])
def test_invalid_time_is_replaced_by_the_current_time(invalid: object) -> None:
    before = time.time()
    event = parse_line(note_line(time=invalid))
    assert before - 1 <= event["time"] <= time.time() + 1


def test_valid_time_is_kept() -> None:
    assert parse_line(note_line())["time"] == 5.0


@pytest.mark.parametrize("figure", ["1e999", "-1e999", "NaN", "1e300", "9" * 400])
def test_number_out_of_range_is_unknown(figure: str) -> None:
    line = b'{"event": "not_shipped", "why": "x", "tok_per_s": %s}' % figure.encode()
    assert parse_line(line)["tok_per_s"] is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "not_shipped", "why": "x", "x": ' + b"9" * 5000 + b"}",
        b'{"event": "not_shipped", "why": "x", "x": ' + b"[" * 40 + b"]" * 40 + b"}",
        b'{"event": "not_shipped", "why": "x", "x": ' + b"[" * 200_000,
        b'{"event": "not_shipped", "why": 5}',
        b'{"event": "not_shipped"}',
        b'{"event": "nothing we know"}',
        b'{"event": ["not_shipped"]}',
        b'["event"]',
        b"\xff\xfe{",
    ],
    ids=lambda line: line[:60],
)
def test_malformed_event_is_raw(line: bytes) -> None:
    event = parse_line(line)
    assert event["event"] == "raw"
    assert event["text"]


def test_malformed_event_names_the_problem() -> None:
    assert parse_line(b'{"event": "not_shipped", "why": 5}')["text"].endswith("(not_shipped.why is not text)")
    assert parse_line(b'{"event": "not_shipped"}')["text"].endswith("(not_shipped has no why)")
