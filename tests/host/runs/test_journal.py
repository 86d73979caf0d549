"""The runs of a host: which are removed, and which are in progress."""

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal
from sparkwright.host.runs.journal import MAX_RUNS, MIN_RUN_AGE_S, Journal
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol.events import event
from sparkwright.runner import run


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


def set_age(book: Journal, age_s: float) -> None:
    modified_s = time.time() - age_s
    for path in (book.folder / "plan.json", book.folder):
        os.utime(path, (modified_s, modified_s))


def begin_run(state: StateFolder, name: str, *, age_s: float = 0, **plan: object) -> Journal:
    book = Journal.begin(state, name, {"host": "spark1", **plan}, ())
    set_age(book, age_s)
    return book


def finish_run(state: StateFolder, name: str, *, age_s: float = 0, status: str = "", **plan: object) -> Journal:
    """Return the journal of a run that has ended. status: of its task, if it has one."""
    book = Journal.begin(state, name, {"host": "spark1", **plan}, ())
    if status:
        book.open()
        book.write(event("task_finished", task="t", name="T", status=status, msg=""))
        book.write(event("recap", host="spark1"))
    book.release_lock()
    set_age(book, age_s)
    return book


def test_old_runs_are_removed_if_there_are_many_and_recent_runs_are_kept(state: StateFolder) -> None:
    for n in range(MAX_RUNS + 3):
        begin_run(state, f"old-{n}", age_s=MIN_RUN_AGE_S * 2 + 100 - n)
    recent = [begin_run(state, f"recent-{n}").folder for n in range(3)]
    names = {folder.name for folder in state.runs()}
    assert all(folder.exists() for folder in recent)
    assert len(names) == MAX_RUNS
    assert "old-0" not in names and f"old-{MAX_RUNS + 2}" in names


def test_runs_with_changes_are_kept_longer_than_others(state: StateFolder) -> None:
    old_s = MIN_RUN_AGE_S * 2
    finish_run(state, "deploy", status="changed", age_s=old_s + 500)
    finish_run(state, "failed-deploy", status="failed", age_s=old_s + 499)
    finish_run(state, "same-deploy", status="ok", age_s=old_s + 498)
    for n in range(MAX_RUNS):
        plan = {"check": True} if n % 2 else {"exclusive": False}
        finish_run(state, f"read-{n}", status="changed", age_s=old_s + 400 - n, **plan)
    finish_run(state, "newest", status="changed", age_s=old_s)
    names = [folder.name for folder in state.runs()]
    assert len(names) == MAX_RUNS
    assert {"deploy", "failed-deploy", "newest"} < set(names)
    assert not {"same-deploy", "read-0"} & set(names)


def test_all_runs_of_the_last_hour_are_kept(state: StateFolder) -> None:
    books = [finish_run(state, f"run-{n}", status="ok", age_s=1800) for n in range(MAX_RUNS + 10)]
    assert [list(journal.follow(book.folder))[-1]["event"] for book in books] == ["recap"] * len(books)


def test_a_run_in_progress_is_kept_at_any_age(state: StateFolder) -> None:
    long = begin_run(state, "long")
    long.open()
    set_age(long, MIN_RUN_AGE_S * 3)
    for n in range(MAX_RUNS + 3):
        begin_run(state, f"run-{n}", age_s=MIN_RUN_AGE_S + 100)
    assert long.folder.exists()
    assert (long.folder / "ballast").exists()


def test_a_removed_run_is_not_in_progress(state: StateFolder) -> None:
    book = begin_run(state, "removed")
    shutil.rmtree(book.folder)
    assert not journal.is_running(book.folder)


def test_read_only_runs_are_listed_only_on_request(state: StateFolder) -> None:
    finish_run(state, "deploy", exclusive=True)
    finish_run(state, "verify", exclusive=False)
    finish_run(state, "plan", exclusive=True, check=True)

    def list_run_ids(*, all_runs: bool) -> set[str]:
        return {row["run"] for row in run.list_runs({"all": all_runs}, Machine(), state)}

    assert list_run_ids(all_runs=False) == {"deploy"}
    assert list_run_ids(all_runs=True) == {"deploy", "verify", "plan"}


def test_a_host_without_runs_says_so(state: StateFolder) -> None:
    def list_texts(*, all_runs: bool) -> list[str]:
        return [row["text"] for row in run.list_runs({"all": all_runs}, Machine(), state)]

    assert list_texts(all_runs=True) == ["no runs yet"]
    finish_run(state, "verify", exclusive=False)
    assert list_texts(all_runs=False) == ["no runs that may have changed this host yet"]


def test_a_run_is_locked_before_its_plan_is_written(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower may read the run as soon as its plan exists."""
    observed: list[list[bool]] = []
    write, flock = write_atomically, fcntl.flock

    def observe() -> None:
        observed.append([journal.is_running(folder) for folder in state.runs()])

    def write_and_observe(*args: Any, **options: Any) -> None:
        write(*args, **options)
        observe()

    def observe_and_lock(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            observe()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", observe_and_lock)
    monkeypatch.setattr(journal, "write_atomically", write_and_observe)
    book = Journal.begin(state, "run-1", {}, ())
    book.open()
    assert observed == [[], [True]]
    assert journal.is_running(book.folder)


def test_the_lock_is_held_by_the_detached_runner(state: StateFolder) -> None:
    book = Journal.begin(state, "run-1", {}, ())
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    book.release_lock()
    assert journal.is_running(book.folder)
    os.close(writing)
    os.waitpid(pid, 0)
    assert not journal.is_running(book.folder)
    os.close(reading)


@pytest.mark.parametrize("ahead_s", [5, 86_400 * 365 * 20])
def test_a_run_with_a_time_in_the_future_is_not_in_progress_and_not_the_newest(
    state: StateFolder, ahead_s: int
) -> None:
    stale = finish_run(state, "stale", age_s=-ahead_s)
    (stale.folder / "alive").unlink()
    set_age(stale, -ahead_s)
    assert not journal.is_running(stale.folder)
    finish_run(state, "newer")
    assert [folder.name for folder in state.runs()] == ["newer", "stale"]
    assert run._find_run(state, {"run": ""}).name == "newer"


def test_the_current_run_is_the_one_in_progress(state: StateFolder) -> None:
    current = Journal.begin(state, "current", {}, ())
    finish_run(state, "later-dry-run")
    assert run._find_run(state, {"run": ""}).name == "current"
    current.release_lock()
    assert run._find_run(state, {"run": ""}).name == "later-dry-run"


def test_a_run_with_a_time_in_the_future_is_removed_like_others(state: StateFolder) -> None:
    stale = finish_run(state, "stale", age_s=-86_400 * 365)
    for n in range(journal.MAX_RUNS + 1):
        finish_run(state, f"run-{n}")
    assert not stale.folder.exists()
