"""Cleanup of the runs: enough are kept to read, and never is one removed that is in progress or being read."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from sparkwright.host.machine import Machine
from sparkwright.host.runs import journal
from sparkwright.host.runs.journal import KEPT_RUNS, KEPT_S, Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import event
from sparkwright.runner import run


def begin(state: StateFolder, name: str, *, ago_s: float = 0) -> Journal:
    book = Journal.begin(state, name, {"host": "spark1"}, ())
    aged = time.time() - ago_s
    for path in (book.folder / "plan.json", book.folder):
        os.utime(path, (aged, aged))
    return book


def test_old_runs_go_when_there_are_many_and_young_ones_stay(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for n in range(KEPT_RUNS + 3):
        begin(state, f"old-{n}", ago_s=KEPT_S * 2 + 100 - n)
    young = [begin(state, f"young-{n}").folder for n in range(3)]
    names = {folder.name for folder in state.runs()}
    assert all(folder.exists() for folder in young)
    assert len(names) == KEPT_RUNS
    assert "old-0" not in names and f"old-{KEPT_RUNS + 2}" in names


def test_runs_that_changed_something_stay_longer_than_those_that_did_not(tmp_path: Path) -> None:
    state, past_s = StateFolder(tmp_path), KEPT_S * 2

    def done(name: str, plan: dict[str, object], status: str, ago_s: float) -> None:
        book = Journal.begin(state, name, {"host": "spark1", **plan}, ())
        book.open()
        book.write(event("task_finished", task="t", name="T", status=status, msg=""))
        book.write(event("recap", host="spark1"))
        book.leave()
        aged = time.time() - ago_s
        for path in (book.folder / "plan.json", book.folder):
            os.utime(path, (aged, aged))

    done("deploy", {}, "changed", past_s + 500)
    done("failed-deploy", {}, "failed", past_s + 499)
    done("same-deploy", {}, "ok", past_s + 498)
    for n in range(KEPT_RUNS):
        plan = {"check": True} if n % 2 else {"exclusive": False}
        done(f"read-{n}", plan, "changed", past_s + 400 - n)
    done("newest", {}, "changed", past_s)
    names = [folder.name for folder in state.runs()]
    assert len(names) == KEPT_RUNS
    assert {"deploy", "failed-deploy", "newest"} < set(names)
    assert not {"same-deploy", "read-0"} & set(names)


def test_more_runs_in_an_hour_than_are_kept_are_all_still_readable(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    pending = [begin(state, f"run-{n}") for n in range(KEPT_RUNS + 10)]
    for book in pending:
        book.open()
        book.write(event("recap", host="spark1"))
    assert [list(journal.follow(book.folder))[-1]["event"] for book in pending] == ["recap"] * len(pending)


def test_a_run_at_work_stays_however_old_it_is(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    long = begin(state, "long")
    long.open()
    aged = time.time() - KEPT_S * 3
    for path in (long.folder / "plan.json", long.folder):
        os.utime(path, (aged, aged))
    for n in range(KEPT_RUNS + 3):
        begin(state, f"run-{n}", ago_s=KEPT_S + 100)
    assert long.folder.exists()
    assert (long.folder / "ballast").exists()


def test_a_run_that_another_tidies_away_meanwhile_does_not_live(tmp_path: Path) -> None:
    book = begin(StateFolder(tmp_path), "gone")
    shutil.rmtree(book.folder)
    assert not journal.lives(book.folder)


def test_runs_that_only_read_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    plans = {"deploy": {"exclusive": True}, "verify": {"exclusive": False}, "plan": {"exclusive": True, "check": True}}
    for name, plan in plans.items():
        Journal.begin(state, name, plan, ()).leave()

    def listed(*, every: bool = False) -> set[str]:
        return {row["run"] for row in run.kept({"all": every}, Machine(), state)}

    assert listed() == {"deploy"}
    assert listed(every=True) == set(plans)
