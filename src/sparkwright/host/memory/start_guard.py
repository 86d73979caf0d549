"""The guard of a start: a separate process that samples the memory from `docker start` until the server is verified.

The process is `sparkwright.guard`; this is the run's side. See docs/decisions/0042-the-guard-of-a-start.md.
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

FOLDER, SUFFIX = "guard", ".ring"
#: how long the guard's process may take to start, and to exit, seconds
READY_S, END_S = 10.0, 5.0
#: rings of earlier starts that are kept
MAX_RINGS = 8
MAX_TIMELINE_ROWS = 200
PROGRAM = str(Path(guard.__file__).parent)
#: glibc gives a thread 64 MB of address space of its own, which would count as locked memory
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class StartSamples:
    """The memory during one guarded start, bytes of MemAvailable."""

    first_bytes: int
    lowest_bytes: int
    #: seconds since the epoch, and what was available
    samples: tuple[tuple[float, int], ...] = ()


@dataclass
class StartGuard:
    """A guard process for one container."""

    process: subprocess.Popen[bytes]
    ring: Path
    name: str
    container_id: str
    stage: str = ""
    #: starting, or serving a test load
    what: Literal["starting", "serving"] = "starting"
    _received: bytes = b""

    def send(self, line: str) -> None:
        """Send the guard a line; no error if it has exited."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()

    def read_line(self, timeout_s: float) -> str:
        """Return the guard's next line; "" if none comes in time or it has exited."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not wait_for_readable([self.process.stdout], left_s):
                return ""
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                return ""
            self._received += piece
        first, _, self._received = self._received.partition(b"\n")
        return first.decode(errors="replace")

    def end(self) -> None:
        """Stop it and wait for its last write."""
        self.send("end")
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Guards:
    """The guards of one run, one at a time, shared by all its modules."""

    #: the level that the host must keep, GiB; 0: a share of its memory
    floor_gib: float = 0.0
    note: Callable[[str], None] = lambda text: None
    #: allow the start of a configuration with which the host went down before
    anyway: bool = False
    current: StartGuard | None = None
    #: the memory left by the budget, bytes; None without a budget
    left_bytes: int | None = None
    #: where the memory settled at the last verified start of this configuration, bytes
    expected_bytes: int | None = None
    #: the flag that helps most, from the budget
    advice: str = ""
    _danger: Danger | None = None
    _reported: bool = False
    _since_s: float = 0.0
    _ended: list[StartGuard] = field(default_factory=list)

    def begin(
        self,
        machine: Machine,
        state: StateFolder,
        run_id: str,
        container: Mapping[str, Any],
        *,
        key: str = "",
        what: Literal["starting", "serving"] = "starting",
    ) -> None:
        """Guard a container before it is started, or sent a load. A previous guard is stopped.

        If the guard cannot start, a note reports it and the start goes on: it is no less safe than without guards.

        Args:
            container: its inspect.
        """
        self.end()
        self._danger, self._reported, self._since_s = None, False, 0.0
        name = str(container.get("Name", "")).lstrip("/")
        path = _new_ring(state, run_id, len(self._ended))
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
            "what": what,
            "server": state.server,
        }
        try:
            self.current = _start_process(path, parameters, name)
            self.current.what = what
        except OSError as error:
            self.note(f"the memory is not guarded: {error.strerror or error}")
            return
        answer = self.current.read_line(READY_S)
        if not answer.startswith("ready"):
            self.note(f"the memory is not guarded: {answer.removeprefix('failed ') or 'the guard did not start'}")
            self.end()
        elif answer != "ready yes":
            self.note(f"the guard is not locked in memory: {answer.removeprefix('ready ')}")

    def set_process(self, container: Mapping[str, Any]) -> None:
        """Send the guard the container's main process, from its inspect after the start; 0 if it has exited."""
        state = container.get("State") or {}
        pid = state.get("Pid")
        is_known = isinstance(pid, int) and (pid > 0 or state.get("Running") is False)
        if self.current is not None and is_known:
            self.current.send(f"pid {pid}")

    def set_stage(self, text: str) -> None:
        """Send the guard the stage of the start, which its samples then name."""
        if self.current is not None and text != self.current.stage:
            self.current.stage = text
            self.current.send(f"stage {text}")

    def take_figures(self, data: Mapping[str, Any]) -> None:
        """Take over a task's memory figures: its budget, and the need of an earlier start."""
        budget = data.get("budget")
        if isinstance(budget, Mapping) and isinstance(budget.get("left_bytes"), int):
            self.left_bytes = budget["left_bytes"]
            self.advice = str(budget.get("fix") or self.advice)
        if isinstance(data.get("expected_lowest_bytes"), int):
            self.expected_bytes = data["expected_lowest_bytes"]

    def expect(self, available_bytes: int | None) -> None:
        """Forget the budget of another configuration: a previously verified server starts again.

        Args:
            available_bytes: the level at which the memory will settle, by what this server held then; None: unknown.
        """
        self.left_bytes, self.advice = None, ""
        self.expected_bytes = max(0, available_bytes) if available_bytes is not None else None

    def reset_lowest(self) -> None:
        """Measure the lowest MemAvailable from now on."""
        self._since_s = time.time()

    @property
    def lowest_bytes(self) -> int | None:
        """The lowest MemAvailable since the start, or since the last mark; None without a guard."""
        seen = self._read_samples(self.current)
        return seen.lowest_bytes if seen else None

    def danger(self) -> Danger | None:
        """Return the danger for which the guard killed the server; None if it did not."""
        if self._danger is None and self.current is not None:
            line = self.current.read_line(0)
            words = line.split()
            if words[:1] == ["killed"]:
                kind, available, free, rate = words[1], *map(int, words[2:5])
                self._danger = Danger(kind, time.monotonic(), available, free, rate)
        return self._danger

    def check(self) -> None:
        """Raise Failed if the guard killed the server."""
        if self.danger() is not None and not self._reported:
            raise Failed(self.sentence())

    def outcome(self, result: Result) -> Result:
        """Return the task's result, or the failure if the guard killed the server during the task."""
        if self._reported or self.danger() is None:
            return result
        self._reported = True
        evidence = [*self.format_timeline()[-12:], *result.data.get("evidence", [])]
        data = {**result.data, "host_saved": True, "evidence": evidence}
        return Result(failed=True, msg=self.sentence(), fix=self.advice, data=data)

    def sentence(self) -> str:
        """Return the reason why the server was killed, with the figures of that moment."""
        danger, own_guard = self.danger(), self.current or (self._ended[-1] if self._ended else None)
        assert danger is not None and own_guard is not None
        falling = f" and falling {danger.rate / GIB:.1f} GiB/s" if danger.rate > GIB / 20 else ""
        stalled = ", and every process was waiting for memory" if danger.kind == "stalled" else ""
        during = f"while it served {own_guard.stage}" if own_guard.what == "serving" else ""
        during = during or f"while at the stage {own_guard.stage!r} of its start"
        stage = f" {during}" if own_guard.stage else ""
        budget = (
            f"; the budget said {format_gib(self.left_bytes)} GiB would be left" if self.left_bytes is not None else ""
        )
        left = f"{format_gib(danger.available)} GiB available"
        return f"{own_guard.name} was stopped to save the host: {left}{falling}{stalled}{stage}{budget}."

    def end_verified(self) -> StartSamples | None:
        """End the guard of a server that is now verified. Returns its samples; None without a guard."""
        own_guard = self.current
        self.end()
        return self._read_samples(own_guard)

    def end(self) -> None:
        """End the guard of this run, if there is one."""
        if self.current is not None:
            self.danger()
            self.current.end()
            self._ended.append(self.current)
            self.current = None

    def format_timeline(self) -> list[str]:
        """Return the last samples as lines of a table."""
        own_guard = self.current or (self._ended[-1] if self._ended else None)
        return format_timeline(own_guard.ring) if own_guard is not None else []

    def _read_samples(self, own_guard: StartGuard | None) -> StartSamples | None:
        if own_guard is None:
            return None
        try:
            header, samples = memory_samples.read(str(own_guard.ring))
        except OSError:
            return None
        rows = [(time_s, available) for time_s, available, _, _ in samples if time_s >= self._since_s]
        if not rows:
            return None
        lowest = min(available for _, available in rows)
        recorded = header.get("lowest", "").split()
        if not self._since_s and recorded and recorded[0].isdigit():
            lowest = min(lowest, int(recorded[0]))
        return StartSamples(rows[0][1], lowest, tuple(rows))


def format_timeline(ring: Path) -> list[str]:
    """Return the samples of a ring as lines of a table: time, GiB available and free, and the rate of the fall."""
    try:
        _, samples = memory_samples.read(str(ring))
    except OSError:
        return []
    rows, before = ["time          available   free   falling"], samples[0] if samples else (0.0, 0, 0, 0.0)
    for sample in samples[-MAX_TIMELINE_ROWS:]:
        seconds = sample[0] - before[0]
        rate = (before[1] - sample[1]) / seconds / GIB if seconds > 0 else 0.0
        clock = time.strftime("%H:%M:%S", time.localtime(sample[0])) + f".{int(sample[0] % 1 * 100):02d}"
        rows.append(f"{clock}  {sample[1] / GIB:8.2f} {sample[2] / GIB:8.2f}  {rate:5.1f} GiB/s")
        before = sample
    return rows


def configuration_key(spec: Mapping[str, Any]) -> str:
    """Return the key of a configuration: the arguments in the form of the history, and the image."""
    return f"{fingerprint(spec)}@{spec.get('image', '')}"


def boot_id(machine: Machine) -> str:
    """Return the identity of this boot; see `guard.samples.boot`."""
    return memory_samples.read_boot_id(machine.root)


def folder(state: StateFolder) -> Path:
    """Return the folder of the rings."""
    return state.path / FOLDER


def _new_ring(state: StateFolder, run_id: str, number: int) -> Path:
    """Return the path for a new guard's ring, after removing the oldest rings."""
    rings_folder = state.folder(FOLDER)
    rings = sorted(rings_folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
    for old in rings[: max(0, len(rings) - MAX_RINGS)]:
        old.unlink(missing_ok=True)
    return rings_folder / f"{run_id}-{number}{SUFFIX}"


def engine_address(machine: Machine) -> str:
    """Return the engine's unix socket, or HOST:PORT; empty for another scheme."""
    url = urlsplit(machine.docker_host or engine_socket.DEFAULT_HOST)
    if url.scheme == "unix":
        return url.path
    return f"{url.hostname}:{url.port or 2375}" if url.scheme in ("tcp", "http") and url.hostname else ""


def _start_process(path: Path, parameters: Mapping[str, str], name: str) -> StartGuard:
    """Start the guard's process in its own session: a signal that ends the run does not end it."""
    argv = [sys.executable, "-I", "-S", PROGRAM, "start", str(path)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True, cwd="/"
    )
    started = StartGuard(process, path, name, parameters["id"])
    started.send("".join(f"{key} {' '.join(value.split())}\n" for key, value in parameters.items() if value))
    return started
