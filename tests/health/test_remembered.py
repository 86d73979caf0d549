"""The history of a check is read again by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.health.store import CheckHistory
from sparkwright.host.state import StateFolder


def test_the_counters_of_an_engine_with_a_heartbeat_come_back(tmp_path: Path) -> None:
    state = StateFolder.of(tmp_path)
    counted = {"time_s": 5.0, "start": "a@1", "running": 1.0, "token": "", "generated": 7.0, "heartbeat": 40.0}
    CheckHistory(seen=["ok"], state="ok", counted=counted).save(state)
    assert CheckHistory.of(state).counted == counted


def test_what_a_first_check_leaves_is_not_called_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = StateFolder.of(tmp_path)
    CheckHistory(seen=["ok"], state="ok").save(state)
    assert CheckHistory.of(state).seen == ["ok"]
    assert capsys.readouterr().err == ""
