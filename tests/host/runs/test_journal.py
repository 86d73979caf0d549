"""Cleanup of the runs: enough are kept to read, and never is one removed that is in progress or being read."""

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal
from sparkwright.host.runs.journal import MAX_RUNS, MIN_AGE_S, Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import event
from sparkwright.runner import run


def begin_run(state: StateFolder, name: str, *, ago_s: float = 0) -> Journal:
    begun = Journal.begin(state, name, {"host": "spark1"}, ())
    modified_s = time.time() - ago_s
    for path in (begun.folder / "plan.json", begun.folder):
        os.utime(path, (modified_s, modified_s))
    return begun


def test_old_runs_go_when_there_are_many_and_young_ones_stay(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for n in range(MAX_RUNS + 3):
        begin_run(state, f"old-{n}", ago_s=MIN_AGE_S * 2 + 100 - n)
    young = [begin_run(state, f"young-{n}").folder for n in range(3)]
    names = {folder.name for folder in state.runs()}
    assert all(folder.exists() for folder in young)
    assert len(names) == MAX_RUNS
    assert "old-0" not in names and f"old-{MAX_RUNS + 2}" in names


def test_runs_that_changed_something_stay_longer_than_those_that_did_not(tmp_path: Path) -> None:
    state, past_s = StateFolder(tmp_path), MIN_AGE_S * 2

    def finish_run(name: str, plan: dict[str, object], status: str, ago_s: float) -> None:
        book = Journal.begin(state, name, {"host": "spark1", **plan}, ())
        book.open()
        book.write(event("task_finished", task="t", name="T", status=status, msg=""))
        book.write(event("recap", host="spark1"))
        book.release_lock()
        aged = time.time() - ago_s
        for path in (book.folder / "plan.json", book.folder):
            os.utime(path, (aged, aged))

    finish_run("deploy", {}, "changed", past_s + 500)
    finish_run("failed-deploy", {}, "failed", past_s + 499)
    finish_run("same-deploy", {}, "ok", past_s + 498)
    for n in range(MAX_RUNS):
        plan = {"check": True} if n % 2 else {"exclusive": False}
        finish_run(f"read-{n}", plan, "changed", past_s + 400 - n)
    finish_run("newest", {}, "changed", past_s)
    names = [folder.name for folder in state.runs()]
    assert len(names) == MAX_RUNS
    assert {"deploy", "failed-deploy", "newest"} < set(names)
    assert not {"same-deploy", "read-0"} & set(names)


def test_more_runs_in_an_hour_than_are_kept_are_all_still_readable(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    pending = [begin_run(state, f"run-{n}") for n in range(MAX_RUNS + 10)]
    for book in pending:
        book.open()
        book.write(event("recap", host="spark1"))
    assert [list(journal.follow(book.folder))[-1]["event"] for book in pending] == ["recap"] * len(pending)


def test_a_run_at_work_stays_however_old_it_is(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    long = begin_run(state, "long")
    long.open()
    aged = time.time() - MIN_AGE_S * 3
    for path in (long.folder / "plan.json", long.folder):
        os.utime(path, (aged, aged))
    for n in range(MAX_RUNS + 3):
        begin_run(state, f"run-{n}", ago_s=MIN_AGE_S + 100)
    assert long.folder.exists()
    assert (long.folder / "ballast").exists()


def test_a_run_that_another_tidies_away_meanwhile_does_not_live(tmp_path: Path) -> None:
    book = begin_run(StateFolder(tmp_path), "gone")
    shutil.rmtree(book.folder)
    assert not journal.is_running(book.folder)


def test_runs_that_only_read_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    plans = {"deploy": {"exclusive": True}, "verify": {"exclusive": False}, "plan": {"exclusive": True, "check": True}}
    for name, plan in plans.items():
        Journal.begin(state, name, plan, ()).release_lock()

    def list_run_ids(*, every: bool = False) -> set[str]:
        return {row["run"] for row in run.list_runs({"all": every}, Machine(), state)}

    assert list_run_ids() == {"deploy"}
    assert list_run_ids(every=True) == set(plans)


# A run that begins never counts as cut off, and one that is gone never as alive.


def test_a_run_is_never_found_unlocked_while_its_runner_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, seen = StateFolder(tmp_path), []
    write, lock = journal.write_atomically, fcntl.flock

    def written(*words: Any, **more: Any) -> None:
        write(*words, **more)
        seen.append(
            [journal.is_running(folder) for folder in state.runs()]
        )  # a follower looks as soon as there is a plan

    def locked(file: Any, how: int) -> None:
        if how == fcntl.LOCK_EX:
            seen.append([journal.is_running(folder) for folder in state.runs()])  # just before the lock is taken
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", locked)
    monkeypatch.setattr(journal, "write_atomically", written)
    book = Journal.begin(state, "run-1", {}, ())
    book.open()
    assert seen == [[], [True]]
    assert journal.is_running(book.folder)


def test_the_lock_is_the_detached_runners_alone(tmp_path: Path) -> None:
    book = Journal.begin(StateFolder(tmp_path), "run-1", {}, ())
    end, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(end, 1)
        os._exit(0)
    book.release_lock()
    assert journal.is_running(book.folder)
    os.close(go)
    os.waitpid(pid, 0)
    assert not journal.is_running(book.folder)
    os.close(end)


@pytest.mark.parametrize("ahead_s", [5, 86_400 * 365 * 20])
def test_a_folder_of_a_wrong_clock_without_a_lock_is_not_alive_and_not_the_newest(tmp_path: Path, ahead_s: int) -> None:
    state = StateFolder(tmp_path)
    stale = Journal.begin(state, "stale", {}, ())
    stale.release_lock()
    (stale.folder / "alive").unlink()
    plan = (stale.folder / "plan.json").stat().st_mtime + ahead_s
    for path in (stale.folder / "plan.json", stale.folder):
        os.utime(path, (plan, plan))
    assert not journal.is_running(stale.folder)
    Journal.begin(state, "newer", {}, ()).release_lock()
    assert [folder.name for folder in state.runs()] == ["newer", "stale"]
    assert run._find_run(state, "").name == "newer"


def test_who_asks_for_the_current_run_gets_the_one_that_is_at_work(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    at_work = Journal.begin(state, "at-work", {}, ())
    Journal.begin(state, "a-dry-run-since", {}, ()).release_lock()
    assert run._find_run(state, "").name == "at-work"
    at_work.release_lock()
    assert run._find_run(state, "").name == "a-dry-run-since"


def test_a_run_of_a_wrong_clock_is_tidied_away_like_any_other(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    stale = Journal.begin(state, "stale", {}, ())
    stale.release_lock()
    ahead = (stale.folder / "plan.json").stat().st_mtime + 86_400 * 365
    for path in (stale.folder / "plan.json", stale.folder):
        os.utime(path, (ahead, ahead))
    for n in range(journal.MAX_RUNS + 1):
        Journal.begin(state, f"run-{n}", {}, ()).release_lock()
    assert not stale.folder.exists()
