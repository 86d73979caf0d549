"""The files of the checks: readable, complete, and limited in size."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.health import record, store
from sparkwright.health.record import Evidence, Record
from sparkwright.health.store import CheckHistory, load_history, load_latest
from sparkwright.host.state import StateFolder
from sparkwright.trust.redact import Redactor


def make_record(time_s: float, size: int = 100) -> Record:
    row = Evidence("disk", "ok", "x" * size)
    return Record(time_s=time_s, state="ok", seen="ok", since_s=1.0, evidence=(row,), drift=("image",))


def test_latest_record_and_history_are_read_as_written(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for time_s in (1.0, 2.0, 3.0):
        store.write_record(state, make_record(time_s))
    assert load_latest(tmp_path) == make_record(3.0)
    assert load_history(tmp_path) == [make_record(1.0), make_record(2.0), make_record(3.0)]
    assert load_history(tmp_path, since_s=2.5) == [make_record(3.0)]


def test_secrets_are_redacted_in_records(tmp_path: Path) -> None:
    evidence = (Evidence("log", "ok", "gehëim-1234"),)
    written = Record(1.0, "ok", "ok", 1.0, why="in the log: key=gehëim-1234", evidence=evidence)
    store.write_record(StateFolder(tmp_path), written, Redactor(["gehëim-1234"]))
    assert "1234" not in "".join(path.read_text() for path in tmp_path.iterdir())
    stored = load_latest(tmp_path)
    assert stored is not None and (stored.state, stored.why) == ("ok", "in the log: key=••••")


def test_invalid_lines_of_the_history_are_skipped(tmp_path: Path) -> None:
    store.write_record(StateFolder(tmp_path), make_record(1.0))
    path = tmp_path / record.HISTORY_FILE
    path.write_text(path.read_text() + '{"time_s": 2.0, "sta\nnull\n[1]\n{"time_s": "x"}\n')
    store.write_record(StateFolder(tmp_path), make_record(3.0))
    assert [row.time_s for row in load_history(tmp_path)] == [1.0, 3.0]


def test_fields_of_a_newer_sparkwright_are_ignored(tmp_path: Path) -> None:
    data = make_record(1.0).to_json() | {"mood": "fine"}
    data["gpu"]["fan_rpm"] = 900
    assert Record.from_json(data) == make_record(1.0)


def test_the_history_is_limited_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 2**16
    monkeypatch.setattr(store, "MAX_HISTORY_FILE_BYTES", bound)
    state = StateFolder(tmp_path)
    for time_s in range(60):
        store.write_record(state, make_record(float(time_s), size=bound // 8))
    files = sorted(path.name for path in tmp_path.glob(f"{record.HISTORY_FILE}*"))
    assert files == [
        record.HISTORY_FILE,
        *(f"{record.HISTORY_FILE}.{n}" for n in range(1, record.MAX_ROTATED_FILES + 1)),
    ]
    assert all(path.stat().st_size <= bound for path in tmp_path.glob(f"{record.HISTORY_FILE}*"))
    times = [row.time_s for row in load_history(tmp_path)]
    assert times == sorted(times) and times[-1] == 59 and len(times) > 20


def test_a_missing_or_damaged_record_is_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    (tmp_path / record.LATEST_FILE).write_text("{")
    assert load_latest(tmp_path) is None


COUNTED = {"time_s": 5.0, "start": "a@1", "running": 1.0, "token": "", "generated": 7.0, "heartbeat": 40.0}


@pytest.mark.parametrize("counted", [{}, COUNTED], ids=["first check", "later check"])
def test_the_history_is_passed_to_the_next_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counted: dict[str, Any]
) -> None:
    state = StateFolder.in_home(tmp_path)
    CheckHistory(seen=["ok"], state="ok", counted=counted).save(state)
    loaded = CheckHistory.load(state)
    assert (loaded.seen, loaded.counted) == (["ok"], counted)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("last_check", "start", "heartbeat", "since_s"),
    [
        ({"running": 1.0}, "a@1", 40.0, 5.0),
        ({"running": 0.0, "token": "none"}, "a@1", 40.0, 5.0),  # a wedged vLLM counts no requests
        ({"running": 0.0, "token": "made"}, "a@1", 40.0, None),
        ({"running": 1.0}, "a@1", 41.0, None),
        ({"running": 1.0}, "a@2", 40.0, None),
        ({"running": 1.0}, "a@1", None, None),
    ],
    ids=["request running", "no token in time", "idle", "heartbeat increased", "restarted", "no heartbeat"],
)
def test_server_is_unchanged_since_the_last_check_with_a_request(
    last_check: dict[str, Any], start: str, heartbeat: float | None, since_s: float | None
) -> None:
    history = CheckHistory(counted={**COUNTED, **last_check})
    assert history.unchanged_since_s(start, heartbeat) == since_s
