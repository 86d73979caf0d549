"""A run that begins never counts as cut off, and one that is gone never as alive."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.runs import journal
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.runner import run


def test_a_run_is_never_found_unlocked_while_its_runner_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, seen = StateFolder(tmp_path), []
    write, lock = journal.write_atomically, fcntl.flock

    def written(*words: Any, **more: Any) -> None:
        write(*words, **more)
        seen.append([journal.lives(folder) for folder in state.runs()])  # a follower looks as soon as there is a plan

    def locked(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:
            seen.append([journal.lives(folder) for folder in state.runs()])  # just before the lock is taken
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(journal, "write_atomically", written)
    book = Journal.begin(state, "run-1", {}, ())
    book.open()
    assert seen == [[], [True]]
    assert journal.lives(book.folder)


def test_the_lock_is_the_detached_runners_alone(tmp_path: Path) -> None:
    book = Journal.begin(StateFolder(tmp_path), "run-1", {}, ())
    end, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(end, 1)
        os._exit(0)
    book.leave()
    assert journal.lives(book.folder)
    os.close(go)
    os.waitpid(pid, 0)
    assert not journal.lives(book.folder)
    os.close(end)


@pytest.mark.parametrize("ahead_s", [5, 86_400 * 365 * 20])
def test_a_folder_of_a_wrong_clock_without_a_lock_is_not_alive_and_not_the_newest(tmp_path: Path, ahead_s: int) -> None:
    state = StateFolder(tmp_path)
    stale = Journal.begin(state, "stale", {}, ())
    stale.leave()
    (stale.folder / "alive").unlink()
    plan = (stale.folder / "plan.json").stat().st_mtime + ahead_s
    for path in (stale.folder / "plan.json", stale.folder):
        os.utime(path, (plan, plan))
    assert not journal.lives(stale.folder)
    Journal.begin(state, "newer", {}, ()).leave()
    assert [folder.name for folder in state.runs()] == ["newer", "stale"]
    assert run._find(state, "").name == "newer"


def test_who_asks_for_the_current_run_gets_the_one_that_is_at_work(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    at_work = Journal.begin(state, "at-work", {}, ())
    Journal.begin(state, "a-dry-run-since", {}, ()).leave()
    assert run._find(state, "").name == "at-work"
    at_work.leave()
    assert run._find(state, "").name == "a-dry-run-since"


def test_a_run_of_a_wrong_clock_is_tidied_away_like_any_other(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    stale = Journal.begin(state, "stale", {}, ())
    stale.leave()
    ahead = (stale.folder / "plan.json").stat().st_mtime + 86_400 * 365
    for path in (stale.folder / "plan.json", stale.folder):
        os.utime(path, (ahead, ahead))
    for n in range(journal.KEPT_RUNS + 1):
        Journal.begin(state, f"run-{n}", {}, ()).leave()
    assert not stale.folder.exists()
