"""The lock of a host: a second run is refused with the owner's name, or waits; a killed owner is reported. The journal on a full disk."""

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
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.journal import Journal
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import decode, event

ALICE = lock.LockOwner("playbooks/deploy.yml", "alice@desk", "run-a", 1, 1_795_000_000.0)
BOB = lock.LockOwner("playbooks/restart.yml", "bob@lap", "run-b", 2, 1_795_000_100.0)

HOLDER = """
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


def open_journal(state: StateFolder, **plan: Any) -> Journal:
    book = Journal.begin(state, "run-a", plan, ())
    book.open()
    return book


def hold_lock_elsewhere(state: StateFolder) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDER, str(state.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize(
    ("owner", "description"),
    [
        (ALICE, r"playbooks/deploy.yml by alice@desk, since .* \(run run-a\)"),
        (lock.LockOwner(), r"another run, which has not recorded its name yet\."),
    ],
    ids=["known owner", "unrecorded owner"],
)
def test_a_second_run_is_refused_with_the_owner(state: StateFolder, owner: lock.LockOwner, description: str) -> None:
    with (
        lock.acquire(state, owner, host="spark1"),
        pytest.raises(Refused, match=f"spark1 is locked: {description}"),
        lock.acquire(state, BOB, host="spark1"),
    ):
        pass


def test_a_released_lock_has_no_owner(state: StateFolder) -> None:
    with lock.acquire(state, ALICE, host="spark1") as before:
        assert before is None
        assert lock.inspect(state) == (ALICE, True)
    assert lock.inspect(state) == (None, False)
    with lock.acquire(state, BOB, host="spark1") as before:
        assert before is None


def test_a_waiting_run_notes_the_owner_and_continues_after_its_end(state: StateFolder) -> None:
    notes: list[str] = []
    holder = hold_lock_elsewhere(state)
    waited = threading.Event()

    def note(text: str) -> None:
        notes.append(text)
        waited.set()

    def release() -> None:
        waited.wait(20)
        holder.communicate()

    threading.Thread(target=release).start()
    with lock.acquire(state, BOB, host="spark1", wait_s=20, note=note) as before:
        assert before is None
    assert notes == [f"waiting: {lock.LockOwner('deploy', 'carol@x', 'run-c', 7, 1.0)}"]


def test_a_killed_owner_is_reported_and_does_not_block_the_next_run(state: StateFolder) -> None:
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


def test_the_record_of_a_killed_owner_can_be_cleared(state: StateFolder) -> None:
    holder = hold_lock_elsewhere(state)
    holder.kill()
    holder.wait()
    assert lock.clear_owner(state) is True
    assert lock.inspect(state) == (None, False)


def test_an_interrupted_run_is_described_with_its_task_and_the_stopped_server(state: StateFolder) -> None:
    book = open_journal(state, who="alice@desk")
    stop = "Stop previous server, keep it for rollback"
    book.write(event("task_started", task="1", name=stop))
    book.write(event("task_finished", task="1", name=stop, status="changed"))
    book.write(event("task_started", task="2", name="Start the server"))
    state.write("previous", {"run": "run-a", "name": "qwen35", "id": "x"})
    assert journal.is_unfinished(state, ALICE)
    message = journal.describe_interruption(state, ALICE)
    assert "alice@desk" in message and "in: Start the server" in message and "it had stopped qwen35" in message
    assert message.endswith("This run resumes from there.")
    message = journal.describe_interruption(state, ALICE, playbook="playbooks/gateway/deploy.yml")
    assert "resumes" not in message and message.endswith("`invoke rollback --host HOST` goes back.")
    book.write(event("recap", exit=1))
    assert not journal.is_unfinished(state, ALICE)


def test_on_a_full_disk_the_ballast_is_removed_and_the_run_continues(state: StateFolder) -> None:
    book = open_journal(state)
    ballast = book.folder / "ballast"
    assert ballast.stat().st_size > 500_000
    with Path("/dev/full").open("wb", buffering=0) as full:
        book._events_file = full
        book.write(event("note", text="lost"))
    assert not ballast.exists()
    book._events_file = (book.folder / "events.jsonl").open("ab", buffering=0)
    book.write(event("recap", exit=0))
    assert json.loads((book.folder / "events.jsonl").read_text())["event"] == "recap"


def test_the_ballast_of_an_interrupted_run_is_removed_by_the_next(state: StateFolder) -> None:
    first = open_journal(state)
    assert first._alive_file is not None
    first._alive_file.close()  # as at the end of its process
    os.utime(first.folder, (time.time(), time.time()))
    Journal.begin(state, "run-b", {}, ())
    assert not (first.folder / "ballast").exists()


def test_a_line_truncated_by_a_full_disk_does_not_damage_the_next(state: StateFolder) -> None:
    """A limit on the file's size truncates a write like a full disk."""
    book = open_journal(state)
    events = book.folder / "events.jsonl"
    book.write(event("note", task="", text="before"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (events.stat().st_size + 20, hard))
    try:
        book.write(event("note", task="", text="lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    book.write(event("note", task="", text="after"))
    book.write(event("note", task="", text="and after that"))
    result = [decode(line) for line in events.read_bytes().splitlines()]
    assert [item["text"] for item in result if item["event"] == "note"] == ["before", "after", "and after that"]
    assert [item["event"] for item in result].count("raw") == 1, "the truncated line"


def test_a_reader_of_the_lock_does_not_block_a_run(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    state.folder()
    (state.path / "lock").touch()
    with (state.path / "lock").open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
        with lock.acquire(state, ALICE, host="spark1") as before:
            assert before is None


@pytest.mark.parametrize(
    ("playbook", "remedy"),
    [
        ("playbooks/deploy.yml", "`invoke deploy --host spark1` finishes it, `invoke rollback --host spark1` goes back"),
        ("playbooks/restart.yml", "`invoke restart --host spark1` repeats it"),
        ("playbooks/gateway/deploy.yml", "`invoke gateway.deploy --host spark1` finishes it"),
        ("results/ab/play.yml", "`invoke rollback --host spark1` restores qwen35, the same `bench` command continues it"),
        ("playbooks/mine.yml", "`invoke unlock --host spark1` clears it"),
    ],
)  # fmt: skip
def test_a_run_whose_process_ended_with_the_lock_is_interrupted(state: StateFolder, playbook: str, remedy: str) -> None:
    name = (
        playbook.removeprefix("playbooks/").removesuffix(".yml").replace("/", ".").replace("results.ab.play", "bench")
    )
    state.write("previous", {"run": "run-a", "name": "qwen35", "id": "x"})
    owner = lock.LockOwner(playbook, "alice@desk", "run-a", os.getpid(), 1_795_000_000.0)
    book = open_journal(state, host="spark1")
    book.write(event("task_started", task="t1", name="Start the server", module="container", where=""))
    with lock.acquire(state, owner, host="spark1"):
        assert journal.interruption_notice(state) == "", "in progress"
        lock_content = (state.path / "lock").read_text()
    book.release_lock()
    assert journal.interruption_notice(state) == "", "lock released"
    (state.path / "lock").write_text(
        lock_content
    )  # as after kill -9 or a power cut, whichever process has this pid now
    notice = journal.interruption_notice(state)
    assert notice.startswith(f"{name} of 2026-11-1")
    assert "by alice@desk was interrupted, in: Start the server; " in notice and notice.endswith(remedy)
    book.write(event("recap", host="spark1", ok=1, changed=0, failed=0, skipped=0, unreachable=0, exit=0, seconds=1))
    assert journal.interruption_notice(state) == "", "finished"
