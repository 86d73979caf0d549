"""One writer at a time: a second one is refused with the owner's name, or waits; a dead owner is reported."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sparkwright.errors import Refused
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import decode, event

ALICE = lock.LockOwner("playbooks/deploy.yml", "alice@desk", "run-a", 1, 1_795_000_000.0)
BOB = lock.LockOwner("playbooks/restart.yml", "bob@lap", "run-b", 2, 1_795_000_100.0)

HOLD = """
import sys, time
from pathlib import Path
from sparkwright.host.state import StateFolder
from sparkwright.host.runs import lock
with lock.acquire(StateFolder(Path(sys.argv[1])), lock.LockOwner("deploy", "carol@x", "run-c", 7, 1.0), host="spark1"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


def hold_lock_elsewhere(state: StateFolder) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


def test_a_second_one_is_refused_with_who_holds_it(state: StateFolder) -> None:
    with (
        lock.acquire(state, ALICE, host="spark1"),
        pytest.raises(Refused, match=r"spark1 is locked: playbooks/deploy.yml by alice@desk, since .* \(run run-a\)"),
        lock.acquire(state, BOB, host="spark1"),
    ):
        pass


def test_one_that_has_not_written_its_name_yet_is_no_somebody_of_1970(state: StateFolder) -> None:
    with (
        lock.acquire(state, lock.LockOwner(), host="spark1"),
        pytest.raises(Refused, match=r"spark1 is locked: another run, which has not recorded its name yet\."),
        lock.acquire(state, BOB, host="spark1"),
    ):
        pass


def test_the_lock_is_free_again_and_tells_of_nobody(state: StateFolder) -> None:
    with lock.acquire(state, ALICE, host="spark1") as before:
        assert before is None
        assert lock.inspect(state) == (ALICE, True)
    assert lock.inspect(state) == (None, False)
    with lock.acquire(state, BOB, host="spark1") as before:
        assert before is None


def test_waiting_says_for_whom_and_goes_on_when_he_is_done(state: StateFolder) -> None:
    notes: list[str] = []
    holder = hold_lock_elsewhere(state)
    waited = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        waited.set()

    def let_go() -> None:
        waited.wait(20)
        holder.communicate()

    threading.Thread(target=let_go).start()
    with lock.acquire(state, BOB, host="spark1", wait_s=20, note=note) as before:
        assert before is None
    assert notes == [f"waiting: {lock.LockOwner('deploy', 'carol@x', 'run-c', 7, 1.0)}"]


def test_a_killed_owner_keeps_nobody_out_and_is_told(state: StateFolder) -> None:
    holder = hold_lock_elsewhere(state)
    assert lock.inspect(state)[1] is True
    assert lock.clear_owner(state) is False
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    owner, alive = lock.inspect(state)
    assert owner is not None and (owner.who, alive) == ("carol@x", False)
    with lock.acquire(state, BOB, host="spark1") as before:
        assert before == owner
    assert lock.inspect(state) == (None, False)


def test_a_line_that_was_left_can_be_forgotten(state: StateFolder) -> None:
    holder = hold_lock_elsewhere(state)
    holder.kill()
    holder.wait()
    assert lock.clear_owner(state) is True
    assert lock.inspect(state) == (None, False)


def test_what_was_cut_off_is_told_with_its_task_and_what_it_had_stopped(state: StateFolder) -> None:
    book = Journal.begin(state, "run-a", {"who": "alice@desk"}, ())
    book.open()
    book.write(event("task_started", task="1", name="Stop previous server, keep it for rollback"))
    book.write(event("task_finished", task="1", name="Stop previous server, keep it for rollback", status="changed"))
    book.write(event("task_started", task="2", name="Start the server"))
    state.write("previous", {"run": "run-a", "name": "qwen35", "id": "x"})
    assert journal.is_unfinished(state, ALICE)
    message = journal.describe_interruption(state, ALICE)
    assert "alice@desk" in message and "in: Start the server" in message and "it had stopped qwen35" in message
    book.write(event("recap", exit=1))
    assert not journal.is_unfinished(state, ALICE)


def test_a_full_disk_takes_the_ballast_and_then_events_but_never_the_run(state: StateFolder) -> None:
    book = Journal.begin(state, "run-a", {}, ())
    book.open()
    ballast = book.folder / "ballast"
    assert ballast.stat().st_size > 500_000
    with Path("/dev/full").open("wb", buffering=0) as full:
        book._events = full
        book.write(event("note", text="lost"))
    assert not ballast.exists()
    book._events = (book.folder / "events.jsonl").open("ab", buffering=0)
    book.write(event("recap", exit=0))
    assert json.loads((book.folder / "events.jsonl").read_text())["event"] == "recap"


def test_the_ballast_of_a_run_that_was_cut_off_is_given_back_by_the_next(state: StateFolder) -> None:
    first = Journal.begin(state, "run-a", {}, ())
    first.open()
    assert first._alive is not None
    first._alive.close()  # as its process's end does
    os.utime(first.folder, (time.time(), time.time()))
    Journal.begin(state, "run-b", {}, ())
    assert not (first.folder / "ballast").exists()


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next(state: StateFolder) -> None:
    """A limit on the file's size truncates a write as a full disk does."""
    book = Journal.begin(state, "run-a", {}, ())
    book.open()
    events = book.folder / "events.jsonl"
    book.write(event("note", task="", text="before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (events.stat().st_size + 20, hard))
    try:
        book.write(event("note", task="", text="lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, was)
    book.write(event("note", task="", text="after"))
    book.write(event("note", task="", text="and after that"))
    result = [decode(line) for line in events.read_bytes().splitlines()]
    assert [item["text"] for item in result if item["event"] == "note"] == ["before", "after", "and after that"]
    assert [item["event"] for item in result].count("raw") == 1, "the piece of the lost one stands alone"


def test_who_only_looks_at_the_lock_keeps_nobody_out(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    state.folder()
    (state.path / "lock").touch()
    with (state.path / "lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(lock.time, "sleep", lambda seconds: fcntl.flock(looking, fcntl.LOCK_UN))
        with lock.acquire(state, ALICE, host="spark1") as before:
            assert before is None


@pytest.mark.parametrize(
    ("playbook", "settled_by"),
    [
        ("playbooks/deploy.yml", "`invoke deploy --host spark1` finishes it, `invoke rollback --host spark1` goes back"),
        ("playbooks/restart.yml", "`invoke restart --host spark1` repeats it"),
        ("playbooks/mine.yml", "`invoke unlock --host spark1` clears it"),
    ],
)  # fmt: skip
def test_a_run_is_in_progress_as_long_as_its_process_holds_the_lock_and_interrupted_after_that(
    state: StateFolder, playbook: str, settled_by: str
) -> None:
    name = Path(playbook).stem
    owner = lock.LockOwner(playbook, "alice@desk", "run-a", os.getpid(), 1_795_000_000.0)
    book = Journal.begin(state, "run-a", {"host": "spark1"}, ())
    book.open()
    book.write(event("task_started", task="t1", name="Start the server", module="container", where=""))
    with lock.acquire(state, owner, host="spark1"):
        assert journal.interruption_notice(state) == "", "it is in progress"
        left = (state.path / "lock").read_text()
    book.release_lock()
    assert journal.interruption_notice(state) == "", "it gave the lock back"
    (state.path / "lock").write_text(left)  # as kill -9 or a power cut leaves it, whoever has this pid now
    result = journal.interruption_notice(state)
    assert (
        result.startswith(f"{name} of 2026-11-1") and "by alice@desk was interrupted, in: Start the server; " in result
    )
    assert result.endswith(settled_by)
    book.write(event("recap", host="spark1", ok=1, changed=0, failed=0, skipped=0, unreachable=0, exit=0, seconds=1))
    assert journal.interruption_notice(state) == "", "it had come to its end"
