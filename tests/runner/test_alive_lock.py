"""A run that begins is never taken for one that was cut off."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from sparkwright.runner import journal
from sparkwright.runner.journal import Journal


def test_the_alive_file_is_never_seen_unlocked_while_its_runner_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    lock = fcntl.flock

    def locked(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:
            seen.append(journal.lives(tmp_path))  # a follower looks just before the lock is taken
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    one = Journal(tmp_path)
    one.open()
    assert seen == [True]
    assert journal.lives(tmp_path)
