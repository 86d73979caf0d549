"""The folder of a run on the host: its plan, its events, and the lock of its process.

runs/<run id>/plan.json      the plan
              events.jsonl   one event per line; followers read it while it grows
              alive          locked while the runner is running; unlike a pid file, it can't be stale
              stop           exists once the run was requested to stop at the next safe point
              ballast        reserved space, freed when the disk is full so that the remaining events can be written
              unchanged      exists until a task changes something or fails; such runs are removed first
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
from _thread import LockType, allocate_lock
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host.records import server_keys, stopped_server
from sparkwright.host.runs import lock
from sparkwright.host.runs.lock import LockOwner
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.protocol import events
from sparkwright.protocol.events import Event, decode, encode, event
from sparkwright.ready import wait_for_readable
from sparkwright.trust import names, private
from sparkwright.trust.bounds import parse_bounded_json
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.redact import Redactor

MAX_RUNS = 50
#: what to do after an interrupted run, by playbook
RESUME_COMMANDS = {
    "deploy": "`invoke deploy --host {host}` finishes it, `invoke rollback --host {host}` goes back",
    "restart": "`invoke restart --host {host}` repeats it",
    "switch": "`invoke switch --host {host}` finishes it",
    "rollback": "`invoke rollback --host {host}` finishes it",
    "gateway.deploy": "`invoke gateway.deploy --host {host}` finishes it",
    "gateway.rollback": "`invoke gateway.rollback --host {host}` finishes it",
}
EXPERIMENT_COMMAND = "bench"
DEFAULT_COMMAND = "`invoke unlock --host {host}` clears it"
#: task outcomes after which a run is not `unchanged`
NOTABLE_STATUSES = ("changed", "failed")
#: younger runs are not removed: the laptop may still be reading them
MIN_RUN_AGE_S = 3600
POLL_S = 0.02
ALIVE_INTERVAL_S = 2.0
#: events that are flushed to disk, with all earlier ones, before the run continues
DURABLE_EVENTS = ("task_started", "recap")
BALLAST_BYTES = 2**20


@dataclass
class Journal:
    """The writer of one run's folder."""

    folder: Path
    #: masks secrets in everything that is written
    redactor: Redactor = field(default_factory=Redactor)
    #: write end of a pipe that wakes a follower for each event; None without a follower
    wake_write_fd: int | None = None
    _events_file: IO[bytes] | None = None
    _alive_file: IO[bytes] | None = field(default=None, repr=False)
    #: a write error has truncated the last line
    _is_truncated: bool = False
    _unchanged: bool = False
    _write_lock: LockType = field(default_factory=allocate_lock, repr=False)

    @classmethod
    def begin(cls, state: StateFolder, run_id: str, plan: dict[str, Any], secrets: tuple[str, ...]) -> Journal:
        """Create the folder, take the `alive` lock and write the plan, in this order, so that a visible plan is always locked.

        Called before the runner detaches; the process that does not execute the run then calls `release_lock`. The keys of this
        host's servers are masked too, because vLLM before 0.32 writes its key to its log.
        """
        folder = state.folder("runs") / names.require_match(names.PATH_COMPONENT, run_id, "the run's id")
        folder.mkdir(mode=private.FOLDER_MODE)
        try:
            alive_file = open(folder / "alive", "wb", opener=private.opener)  # noqa: SIM115 - held until the process ends
            fcntl.flock(alive_file, fcntl.LOCK_EX)
            redactor = Redactor([*secrets, *server_keys.list_keys(state)])
            private.touch(folder / "events.jsonl")
            private.touch(folder / "unchanged")
            write_atomically(folder / "plan.json", json.dumps(redactor.redact_value(plan)).encode())
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # nothing else removes an incomplete folder
            raise
        _remove_old_runs(state, folder)
        return cls(folder, redactor, _alive_file=alive_file, _unchanged=not is_read_only(plan))

    def release_lock(self) -> None:
        """Close the lock in the process that detached a runner, so that only the runner holds it."""
        if self._alive_file is not None:
            self._alive_file.close()

    def open(self) -> None:
        """Open the events file in the process that executes the run."""
        self._events_file = open(self.folder / "events.jsonl", "ab", buffering=0, opener=private.opener)  # noqa: SIM115
        with contextlib.suppress(OSError), open(self.folder / "ballast", "wb", opener=private.opener) as ballast:
            os.posix_fallocate(ballast.fileno(), 0, BALLAST_BYTES)

    def write(self, event: Event) -> None:
        """Append an event; callable from any thread. Events in DURABLE_EVENTS are on disk when it returns."""
        with self._write_lock:
            self._write(event)

    def _write(self, event: Event) -> None:
        line = encode(event, self.redactor)
        if self._is_truncated:  # end the line that a full disk truncated
            line = b"\n" + line
        rest, error = self._append(line)
        if error:
            (self.folder / "ballast").unlink(missing_ok=True)
            rest, error = self._append(rest)
        self._is_truncated = bool(error) and (self._is_truncated or rest != line)
        if error:
            print(f"event not recorded: {error}", flush=True)  # the run continues
        elif event["event"] in DURABLE_EVENTS:
            with contextlib.suppress(OSError):
                os.fdatasync(self._open_events_file.fileno())
        if event["event"] == "recap":
            (self.folder / "ballast").unlink(missing_ok=True)
        if self._unchanged and event["event"] == "task_finished" and event["status"] in NOTABLE_STATUSES:
            self._unchanged = False
            with contextlib.suppress(OSError):
                (self.folder / "unchanged").unlink()
        if self.wake_write_fd is not None:
            with contextlib.suppress(OSError):  # the pipe is full, or the follower has exited
                os.write(self.wake_write_fd, b".")

    @property
    def _open_events_file(self) -> IO[bytes]:
        assert self._events_file is not None
        return self._events_file

    def _append(self, line: bytes) -> tuple[bytes, OSError | None]:
        """Write a line. Returns the unwritten rest and the error, such as a full disk."""
        while line:
            try:
                line = line[self._open_events_file.write(line) or 0 :]
            except OSError as error:
                return line, error
        return b"", None

    def stop_requested(self) -> bool:
        """Return True if this run was requested to stop at the next safe point."""
        return (self.folder / "stop").exists()


def follow(folder: Path, wake_read_fd: int | None = None) -> Iterator[Event]:
    """Yield all events of a run up to its recap, and `alive` after every ALIVE_INTERVAL_S without an event.

    If the runner exited without a recap, yield a recap that reports this error.

    Args:
        wake_read_fd: read end of the journal's pipe; if None, the file is polled every POLL_S.
    """
    last_event_s = time.monotonic()
    with (folder / "events.jsonl").open("rb") as file:
        while True:
            has_ended = not is_running(folder)
            for line in _complete_lines(file):
                received = decode(line)
                yield received
                last_event_s = time.monotonic()
                if received["event"] == "recap":
                    return
            if has_ended:
                yield _interrupted_recap(folder)
                return
            if time.monotonic() - last_event_s > ALIVE_INTERVAL_S:
                last_event_s = time.monotonic()
                yield event("alive")
            if wake_read_fd is None:
                time.sleep(POLL_S)
            elif wait_for_readable([wake_read_fd], ALIVE_INTERVAL_S / 4) and not os.read(wake_read_fd, 4096):
                wake_read_fd = None  # the runner has exited


def is_running(folder: Path) -> bool:
    """Return True if the process of this run is running."""
    return private.is_locked(folder / "alive")


def list_running(state: StateFolder) -> list[Path]:
    """Return the folders of running runs, newest first."""
    return [folder for folder in state.runs() if is_running(folder)]


def read_plan(folder: Path) -> dict[str, Any]:
    """Return the plan of a run; empty if it is missing, invalid or not written yet."""
    try:
        plan = parse_bounded_json((folder / "plan.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}


def is_read_only(plan: Mapping[str, Any]) -> bool:
    """Return True if a run of this plan changes nothing, either in check mode or because it does not take the host's lock."""
    return bool(plan.get("check")) or not plan.get("exclusive", True)


def read_recap(folder: Path) -> Event | None:
    """Return the recap of a run; None while it is running, or if it was interrupted."""
    try:
        lines = (folder / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return None
    last_event = decode(lines[-1]) if lines else {"event": ""}
    return last_event if last_event["event"] == "recap" else None


def _remove_old_runs(state: StateFolder, new_run: Path) -> None:
    """Remove the runs beyond MAX_RUNS, those without changes first, and the ballast of interrupted runs."""
    runs = list(state.runs())
    excess_count = len(runs) - MAX_RUNS
    finished_runs = [run for run in reversed(runs) if run != new_run and not is_running(run)]
    if excess_count > 0:
        for path in sorted(finished_runs, key=lambda folder: not (folder / "unchanged").exists()):
            if excess_count > 0 and not 0 <= _age_s(path) <= MIN_RUN_AGE_S:
                shutil.rmtree(path, ignore_errors=True)
                excess_count -= 1
    for path in finished_runs:
        (path / "ballast").unlink(missing_ok=True)


def _age_s(folder: Path) -> float:
    """Return the seconds since a run's folder changed; negative if the clock was set back, infinite if it no longer exists."""
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _complete_lines(file: IO[bytes]) -> Iterator[bytes]:
    while line := file.readline():
        if not line.endswith(b"\n"):
            file.seek(-len(line), os.SEEK_CUR)
            return
        yield line


def _interrupted_recap(folder: Path) -> Event:
    msg = f"the run {folder.name} was interrupted: its process exited without a result (see {folder}/runner.log)"
    return events.build_error_recap(read_plan(folder).get("host", ""), Failed(msg))


def interruption_notice(state: StateFolder) -> str:
    """Describe an interrupted run for `status`, with the command to continue it; empty if there is none."""
    owner, is_alive = lock.inspect(state)
    if owner is None or is_alive or not is_unfinished(state, owner):
        return ""
    task = read_last_task(state, owner.run)
    start = units.format_time(owner.since, units.MINUTE_FORMAT)
    interruption = f"{command_of(owner.what)} of {start} by {owner.who} was interrupted"
    return f"{interruption}{f', in: {task}' if task else ''}; {_describe_remedy(state, owner)}"


def command_of(playbook: str) -> str:
    """Return the command that runs a playbook, such as `gateway.deploy` or `bench`; for an unknown playbook, its name."""
    path = PurePath(playbook)
    if path.match("results/*/play.yml"):
        return EXPERIMENT_COMMAND
    return f"gateway.{path.stem}" if path.parent.name == "gateway" else path.stem


def _describe_remedy(state: StateFolder, owner: LockOwner) -> str:
    """Return the commands that finish or undo an interrupted run."""
    command, plan = command_of(owner.what), read_plan(state.path / "runs" / owner.run)
    cluster, host = plan.get("cluster"), plan.get("host") or "HOST"
    target = (cluster.get("name") if isinstance(cluster, dict) else "") or host
    if command in RESUME_COMMANDS:
        return RESUME_COMMANDS[command].format(host=target)
    if command != EXPERIMENT_COMMAND:
        return DEFAULT_COMMAND.format(host=host)
    server = _stopped_server(state, owner)
    restore_clause = f"`invoke rollback --host {target}` restores {server}, " if server else ""
    return f"{restore_clause}the same `bench` command continues it"


def _stopped_server(state: StateFolder, owner: LockOwner) -> str:
    """Return the container name of the server that an interrupted run stopped and kept; empty if it stopped none."""
    server = str(read_plan(state.path / "runs" / owner.run).get("server", ""))
    previous = stopped_server.load(StateFolder(state.path, server if PATH_COMPONENT.fullmatch(server) else ""))
    return str(previous.get("name") or "") if previous.get("run") == owner.run else ""


def describe_interruption(state: StateFolder, owner: LockOwner, server: str = "", playbook: str = "") -> str:
    """Describe an interrupted run for the run after it.

    Args:
        server: server of the run after it, if the host has several.
        playbook: playbook of the run after it.
    """
    description = f"an earlier run was interrupted: {owner}"
    task = read_last_task(state, owner.run)
    stopped_server = _stopped_server(state, owner)
    detail = f"; it had stopped {stopped_server}" if stopped_server else ""
    description += f", {f'in: {task}' if task else 'before its first task'}{detail}"
    is_same_server = read_plan(state.path / "runs" / owner.run).get("server", "") == server
    is_gateway_run, was_gateway_run = (command_of(name).startswith("gateway.") for name in (playbook, owner.what))
    if is_same_server and is_gateway_run == was_gateway_run:
        return f"{description}. This run resumes from there."
    return f"{description}; {_describe_remedy(state, owner)}."


def is_unfinished(state: StateFolder, owner: LockOwner) -> bool:
    """Return True if a run's journal has no recap."""
    return read_recap(state.path / "runs" / owner.run) is None


def read_last_task(state: StateFolder, run_id: str) -> str:
    """Return the name of the last task that a run started; empty if there is none."""
    try:
        lines = (state.path / "runs" / run_id / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return ""
    started_tasks = (recorded for recorded in map(decode, reversed(lines)) if recorded["event"] == "task_started")
    return str(next(started_tasks, {}).get("name", ""))
