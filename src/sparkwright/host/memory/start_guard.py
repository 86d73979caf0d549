"""The memory guard of a server start: a process that samples memory until the server is verified.

The process is `sparkwright.guard`. See docs/decisions/0042-the-guard-of-a-start.md.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from sparkwright import guard
from sparkwright.errors import Failed
from sparkwright.guard import samples as memory_samples
from sparkwright.guard.judge import Danger
from sparkwright.host.containers import engine_socket
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import fingerprint
from sparkwright.protocol.result import Result
from sparkwright.ready import wait_for_readable
from sparkwright.units import GIB, format_gib

FOLDER, RING_SUFFIX = "guard", ".ring"
#: timeouts for the start and the exit of the guard's process
START_TIMEOUT_S, EXIT_TIMEOUT_S = 10.0, 5.0
#: number of sample files (ring buffers) kept from earlier starts
MAX_RINGS = 8
MAX_TIMELINE_ROWS = 200
PROGRAM = str(Path(guard.__file__).parent)
#: by default, glibc reserves 64 MB of address space per thread, which would count as locked memory
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class StartSamples:
    """MemAvailable during one guarded start."""

    first_bytes: int
    lowest_bytes: int
    #: (seconds since the epoch, MemAvailable in bytes)
    samples: tuple[tuple[float, int], ...] = ()


@dataclass
class StartGuard:
    """A guard process for one container."""

    process: subprocess.Popen[bytes]
    #: file with the guard's samples
    ring_path: Path
    name: str
    container_id: str
    stage: str = ""
    #: starting, or serving a test load
    activity: Literal["starting", "serving"] = "starting"
    #: output after the last complete line
    _unread_output: bytes = b""

    def send(self, line: str) -> None:
        """Send a line to the guard. Does nothing if the guard has exited."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def read_line(self, timeout_s: float) -> str:
        """Return the guard's next line, or "" after the timeout or if it has exited."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._unread_output:
            remaining_s = max(0.0, deadline_s - time.monotonic())
            if not wait_for_readable([self.process.stdout], remaining_s):
                return ""
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                return ""
            self._unread_output += piece
        line, _, self._unread_output = self._unread_output.partition(b"\n")
        return line.decode(errors="replace")

    def end(self) -> None:
        """Stop the guard and wait for its last write."""
        self.send("end")
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Guards:
    """The guards of one run, one at a time, shared by all its modules."""

    #: minimum available memory in GiB; 0 for the default, a share of the host's total memory
    floor_gib: float = 0.0
    note: Callable[[str], None] = lambda text: None
    #: allow the start of a configuration that brought the host down before
    allow_forbidden: bool = False
    current: StartGuard | None = None
    #: memory that the budget leaves free; None without a budget
    left_bytes: int | None = None
    #: expected lowest MemAvailable, from the last verified start of this configuration
    expected_bytes: int | None = None
    #: advice for the user if the start exceeds the budget
    advice: str = ""
    _danger: Danger | None = None
    _is_reported: bool = False
    #: time from which the lowest MemAvailable is measured; 0 for all samples
    _since_s: float = 0.0
    _ended_guards: list[StartGuard] = field(default_factory=list)

    def begin(
        self,
        machine: Machine,
        state: StateFolder,
        run_id: str,
        container: Mapping[str, Any],
        *,
        key: str = "",
        activity: Literal["starting", "serving"] = "starting",
    ) -> None:
        """Start the guard of a container, given its inspect data, before the container is started or put under load.

        Ends the previous guard. If the guard can't be started, the run continues without it, with a note.
        """
        self.end()
        self._danger, self._is_reported, self._since_s = None, False, 0.0
        name = str(container.get("Name", "")).lstrip("/")
        path = _build_ring_path(state, run_id, len(self._ended_guards))
        parameters = {
            "id": str(container.get("Id", "")),
            "name": name,
            "address": engine_address(machine),
            "root": machine.root,
            "floor": str(int(self.floor_gib * GIB)),
            "expected": str(self.expected_bytes or max(0, self.left_bytes or 0)),
            "run": run_id,
            "boot": boot_id(machine),
            "key": key,
            "what": activity,
            "server": state.server,
        }
        try:
            self.current = _start_process(path, parameters, name)
            self.current.activity = activity
        except OSError as error:
            self.note(f"the memory is not guarded: {error.strerror or error}")
            return
        first_line = self.current.read_line(START_TIMEOUT_S)
        if not first_line.startswith("ready"):
            self.note(f"the memory is not guarded: {first_line.removeprefix('failed ') or 'the guard did not start'}")
            self.end()
        elif first_line != "ready yes":
            self.note(f"the guard is not locked in memory: {first_line.removeprefix('ready ')}")

    def set_process(self, container: Mapping[str, Any]) -> None:
        """Send the guard the pid of the container's main process, from its inspect data; 0 if it has exited."""
        state = container.get("State") or {}
        pid = state.get("Pid")
        is_known = isinstance(pid, int) and (pid > 0 or state.get("Running") is False)
        if self.current is not None and is_known:
            self.current.send(f"pid {pid}")

    def set_stage(self, text: str) -> None:
        """Send the guard the stage of the start, which it records with its samples."""
        if self.current is not None and text != self.current.stage:
            self.current.stage = text
            self.current.send(f"stage {text}")

    def set_figures(self, data: Mapping[str, Any]) -> None:
        """Set the budget and the expected lowest memory from a task's result, if the result contains them."""
        budget = data.get("budget")
        if isinstance(budget, Mapping) and isinstance(budget.get("left_bytes"), int):
            self.left_bytes = budget["left_bytes"]
            self.advice = str(budget.get("fix") or self.advice)
        if isinstance(data.get("expected_lowest_bytes"), int):
            self.expected_bytes = data["expected_lowest_bytes"]

    def expect(self, available_bytes: int | None) -> None:
        """Drop the budget and set the expected level instead, before starting a server other than the planned one.

        Args:
            available_bytes: expected lowest MemAvailable; None if unknown.
        """
        self.left_bytes, self.advice = None, ""
        self.expected_bytes = max(0, available_bytes) if available_bytes is not None else None

    def reset_lowest(self) -> None:
        """Measure the lowest MemAvailable from now on."""
        self._since_s = time.time()

    @property
    def lowest_bytes(self) -> int | None:
        """The lowest MemAvailable since the start, or since `reset_lowest`; None without a guard."""
        measured = self._read_samples(self.current)
        return measured.lowest_bytes if measured else None

    def find_danger(self) -> Danger | None:
        """Return the reason why the guard killed the server, or None if it did not."""
        if self._danger is None and self.current is not None:
            words = self.current.read_line(0).split()
            if words[:1] == ["killed"]:
                kind, available, free, rate = words[1], *map(int, words[2:5])
                self._danger = Danger(kind, time.monotonic(), available, free, rate)
        return self._danger

    def check(self) -> None:
        """Raise Failed if the guard killed the server."""
        if self.find_danger() is not None and not self._is_reported:
            raise Failed(self.describe_danger())

    def outcome(self, result: Result) -> Result:
        """Return the task's result, or a failure if the guard killed the server during the task."""
        if self._is_reported or self.find_danger() is None:
            return result
        self._is_reported = True
        evidence = [*self.format_timeline()[-12:], *result.data.get("evidence", [])]
        data = {**result.data, "host_saved": True, "evidence": evidence}
        return Result(failed=True, msg=self.describe_danger(), fix=self.advice, data=data)

    def describe_danger(self) -> str:
        """Return a message with the reason why the guard killed the server."""
        danger, last_guard = self.find_danger(), self._last_guard()
        assert danger is not None and last_guard is not None
        text = f"{last_guard.name} was stopped to save the host: {format_gib(danger.available)} GiB available"
        if danger.rate > GIB / 20:
            text += f" and falling {danger.rate / GIB:.1f} GiB/s"
        if danger.kind == "stalled":
            text += ", and every process was waiting for memory"
        if last_guard.stage:
            is_serving = last_guard.activity == "serving"
            stage = f"it served {last_guard.stage}" if is_serving else f"it was starting (stage {last_guard.stage!r})"
            text += f" while {stage}"
        if self.left_bytes is not None:
            text += f"; its budget left {format_gib(self.left_bytes)} GiB"
        return f"{text}."

    def end_verified(self) -> StartSamples | None:
        """End the guard of a server that is now verified. Returns its samples, or None without a guard."""
        verified_guard = self.current
        self.end()
        return self._read_samples(verified_guard)

    def end(self) -> None:
        """End the current guard, if there is one."""
        if self.current is not None:
            self.find_danger()
            self.current.end()
            self._ended_guards.append(self.current)
            self.current = None

    def format_timeline(self) -> list[str]:
        """Return the samples of the current guard, or else of the last one, as lines of a table."""
        last_guard = self._last_guard()
        return format_timeline(last_guard.ring_path) if last_guard is not None else []

    def _last_guard(self) -> StartGuard | None:
        return self.current or (self._ended_guards[-1] if self._ended_guards else None)

    def _read_samples(self, start_guard: StartGuard | None) -> StartSamples | None:
        if start_guard is None:
            return None
        try:
            header, all_samples = memory_samples.read(str(start_guard.ring_path))
        except OSError:
            return None
        samples = [(time_s, available) for time_s, available, _, _ in all_samples if time_s >= self._since_s]
        if not samples:
            return None
        lowest_bytes = min(available for _, available in samples)
        recorded_words = header.get("lowest", "").split()
        if not self._since_s and recorded_words and recorded_words[0].isdigit():
            lowest_bytes = min(lowest_bytes, int(recorded_words[0]))
        return StartSamples(samples[0][1], lowest_bytes, tuple(samples))


def format_timeline(ring_path: Path) -> list[str]:
    """Return a guard's last samples as lines of a table: time, GiB available and free, and the rate of decrease."""
    try:
        _, samples = memory_samples.read(str(ring_path))
    except OSError:
        return []
    lines = ["time          available   free   falling"]
    previous_s, previous_bytes = samples[0][:2] if samples else (0.0, 0)
    for time_s, available, free, _ in samples[-MAX_TIMELINE_ROWS:]:
        elapsed_s = time_s - previous_s
        rate = (previous_bytes - available) / elapsed_s / GIB if elapsed_s > 0 else 0.0
        time_text = time.strftime("%H:%M:%S", time.localtime(time_s)) + f".{int(time_s % 1 * 100):02d}"
        lines.append(f"{time_text}  {available / GIB:8.2f} {free / GIB:8.2f}  {rate:5.1f} GiB/s")
        previous_s, previous_bytes = time_s, available
    return lines


def configuration_key(spec: Mapping[str, Any]) -> str:
    """Return the key of a configuration: the fingerprint of its arguments, and its image."""
    return f"{fingerprint(spec)}@{spec.get('image', '')}"


def boot_id(machine: Machine) -> str:
    """Return the identity of this boot."""
    return memory_samples.read_boot_id(machine.root)


def folder(state: StateFolder) -> Path:
    """Return the folder of the guards' files."""
    return state.path / FOLDER


def _build_ring_path(state: StateFolder, run_id: str, number: int) -> Path:
    """Return the path of a new guard's sample file, after removing the oldest files."""
    rings_folder = state.folder(FOLDER)
    rings = sorted(rings_folder.glob(f"*{RING_SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for old_ring in rings[: max(0, len(rings) - MAX_RINGS)]:
        old_ring.unlink(missing_ok=True)
    return rings_folder / f"{run_id}-{number}{RING_SUFFIX}"


def engine_address(machine: Machine) -> str:
    """Return the path of Docker's unix socket, or HOST:PORT; "" for another scheme."""
    url = urlsplit(machine.docker_host or engine_socket.DEFAULT_HOST)
    if url.scheme == "unix":
        return url.path
    return f"{url.hostname}:{url.port or 2375}" if url.scheme in ("tcp", "http") and url.hostname else ""


def _start_process(path: Path, parameters: Mapping[str, str], name: str) -> StartGuard:
    """Start the guard's process in its own session, so that a signal that ends the run does not end the guard."""
    argv = [sys.executable, "-I", "-S", PROGRAM, "start", str(path)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True, cwd="/"
    )
    start_guard = StartGuard(process, path, name, parameters["id"])
    start_guard.send("".join(f"{key} {' '.join(value.split())}\n" for key, value in parameters.items() if value))
    return start_guard
