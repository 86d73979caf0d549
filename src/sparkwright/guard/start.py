"""The guard of a start, which takes samples until the server is verified, and kills the container before memory runs out.

It reads the lines `pid N`, `stage TEXT` and `end` from standard input, and writes a line to standard output when it is ready and
another after a kill. If the runner exits, the guard continues until the container's process has ended, for at most an hour,
because the server has not been verified.
"""

from __future__ import annotations

import os
import time

from sparkwright.guard import samples as memory_samples
from sparkwright.guard.judge import Danger, DangerDetector, Floors
from sparkwright.guard.kill import Target
from sparkwright.guard.process import NEAR_FLOOR_WRITE_INTERVAL_S, WRITE_INTERVAL_S, Writer, lock_in_memory
from sparkwright.guard.samples import Meter

#: longest pause between two samples, in seconds
MAX_PAUSE_S = 0.1
#: how long samples are taken after a kill, and the interval between further kills while the process has not ended, in seconds
RELEASE_WATCH_S = 3.0
#: parameters that are copied to the ring file's header
HEADER_PARAMETERS = ("name", "id", "run", "boot", "key", "server", "what", "expected")
#: how long the guard continues after its runner has exited, in seconds
MAX_ORPHAN_S = 3600.0
#: samples are written more often when available memory is below this multiple of the floor
NEAR_FLOOR_FACTOR = 4


class Guard:
    """The guard of one start.

    Args:
        path: path of the ring file.
        parameters: see `main`.
    """

    def __init__(self, path: str, parameters: dict[str, str]) -> None:
        self.meter = Meter(parameters.get("root", ""))
        floors = Floors(self.meter.total, int(parameters.get("floor", 0)), int(parameters.get("expected", 0)))
        self.detector = DangerDetector(floors)
        self.target = Target(parameters["id"], parameters.get("address", "")) if parameters.get("id") else None
        header = {"state": "guarding", "pid": str(os.getpid()), "stage": ""}
        header["total"] = str(self.meter.total)
        header.update({name: value for name, value in parameters.items() if name in HEADER_PARAMETERS})
        self.ring = memory_samples.Ring(path, header)
        self.ring.set_header_row("locked", lock_in_memory() or "yes")
        self.ring.set_header_row("began", f"{time.time():.3f}")
        self.unparsed_input = b""
        #: monotonic time at which the runner exited; 0 while it is running
        self.orphaned_at_s = 0.0
        self.ended = False
        self.kill_danger: Danger | None = None

    def run(self) -> None:
        """Sample until the command `end`, a kill, or `_is_orphaned`."""
        os.set_blocking(0, False)
        writer = Writer(self.ring.flush)
        _write_line(f"ready {self.ring.header['locked']}")
        while not self.ended:
            self._read_commands()
            danger = self._sample()
            if danger is not None:
                self._kill_container(danger)
                writer.interval_s = NEAR_FLOOR_WRITE_INTERVAL_S
                break
            near_floor_bytes = NEAR_FLOOR_FACTOR * self.detector.floors.floor + self.detector.rate(1.0)
            writer.interval_s = (
                NEAR_FLOOR_WRITE_INTERVAL_S if self.meter.available < near_floor_bytes else WRITE_INTERVAL_S
            )
            self.ended = self.ended or self._is_orphaned()
            time.sleep(self.detector.pause_s(MAX_PAUSE_S))
        if self.kill_danger is not None:
            self._watch_release()
        self.ring.set_header_row("state", "killed" if self.kill_danger else "ended")
        writer.stop()

    def _watch_release(self) -> None:
        """Sample while the memory is released, and kill again while the container's process has not ended."""
        deadline_s = next_kill_s = time.monotonic() + RELEASE_WATCH_S
        while not self.ended and (time.monotonic() < deadline_s or self._is_stuck()):
            self._sample()
            self._read_commands()
            time.sleep(MAX_PAUSE_S)
            if time.monotonic() > next_kill_s and self.target is not None and self._is_stuck():
                next_kill_s = time.monotonic() + RELEASE_WATCH_S
                self.target.kill_by_engine()
                self.target.kill_processes()

    def _is_stuck(self) -> bool:
        """Return True if the container's process is known and has not ended."""
        return self.target is not None and self.target.pid > 0 and not self.target.has_ended

    def _sample(self) -> Danger | None:
        """Take, store and evaluate a sample. It is skipped if a file cannot be read."""
        try:
            self.meter.read()
        except (OSError, ValueError):
            return None
        meter, lowest = self.meter, self.detector.lowest
        now_s = time.time()
        self.ring.add(now_s, meter.available, meter.free, meter.stall_s)
        danger = self.detector.add_sample(time.monotonic(), meter.available, meter.free, meter.stall_s)
        if self.detector.lowest < lowest:
            self.ring.set_header_row("lowest", f"{self.detector.lowest} {now_s:.3f}")
        return danger

    def _kill_container(self, danger: Danger) -> None:
        """Kill the container, then report it."""
        engine_error = process_error = "no container"
        if self.target is not None:
            engine_error = self.target.kill_by_engine()
            process_error = self.target.kill_processes()
        self.kill_danger = danger
        danger_text = f"{danger.kind} {danger.available} {danger.free} {int(danger.rate)}"
        self.ring.set_header_row("danger", danger_text)
        self.ring.set_header_row("killed", f"{time.time():.3f}")
        self.ring.set_header_row("by_engine", engine_error or "sent")
        self.ring.set_header_row("by_process", process_error or "sent")
        _write_line("killed " + danger_text)

    def _read_commands(self) -> None:
        """Read and execute the runner's commands."""
        try:
            data = os.read(0, 4096)
        except BlockingIOError:
            return
        if not data:
            self.orphaned_at_s = self.orphaned_at_s or time.monotonic()
            return
        *lines, self.unparsed_input = (self.unparsed_input + data).split(b"\n")
        for line in lines:
            command, _, argument = line.decode(errors="replace").partition(" ")
            if command == "pid" and self.target is not None and argument.isdigit():
                self.target.hold_process(int(argument))
            elif command == "stage":
                self.ring.set_header_row("stage", argument[:100])
            elif command == "end":
                self.ended = True

    def _is_orphaned(self) -> bool:
        """Return True if the runner has exited, and either the container's process has ended or MAX_ORPHAN_S have passed."""
        if not self.orphaned_at_s:
            return False
        has_ended = self.target is None or self.target.has_ended
        return has_ended or time.monotonic() - self.orphaned_at_s > MAX_ORPHAN_S


def _write_line(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:  # the runner is gone
        pass


def main(path: str) -> int:
    """Guard a start. Its parameters are read from standard input, one per line, up to an empty line.

    They are `id` and `name` of the container, the Docker Engine's `address`, `floor` and `expected` in bytes, the `root` of a
    simulated host, the `key` of the configuration, and `run`, `boot`, `server` and `what` ("starting" or "serving") for the
    header.

    Args:
        path: path of the ring file.
    """
    text = b""
    while b"\n\n" not in text:
        piece = os.read(0, 65536)
        if not piece:
            return 2
        text += piece
    parameter_lines, _, unparsed_input = text.partition(b"\n\n")
    parameters = dict(line.partition(" ")[::2] for line in parameter_lines.decode().splitlines())
    try:
        guard = Guard(path, parameters)
    except (OSError, ValueError) as error:
        _write_line(f"failed {error}")
        return 1
    guard.unparsed_input = unparsed_input
    guard.run()
    return 0
