"""Reliable transfers: a child process downloads, this side watches the bytes on the disk, and retries or changes the mode."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparkwright
from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host.models import file_transfer, hub
from sparkwright.host.models.hub import Source
from sparkwright.host.models.manifest import Manifest, total_bytes
from sparkwright.host.models.model_folders import Staging
from sparkwright.host.module import Context
from sparkwright.visible import join_first


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a transfer, and the pauses between them."""

    #: give up after this many in a row without progress
    tries: int = 6
    #: before the second, third, ... try; the last one is repeated
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)
    #: between two progress messages
    progress_interval_s: float = 1.0  # a message names all current files, and the journal keeps it
    #: silent retries of the hub's client per request (1 s, 2 s, 4 s apart); few, because a user who waits should see why
    hub_retries: int = 2

    def pause_s(self, failed: int) -> float:
        """Return the pause after this many tries in a row without progress."""
        return self.pauses_s[min(max(failed - 1, 0), len(self.pauses_s) - 1)]


# Reliable transfers: a child process downloads, this side watches the bytes on the disk, and retries or changes the
# mode.
#
# Files go to a staging folder inside the model's folder and are verified there; when all are correct they replace the
# old files together. So a server never reads a wrong byte or half a new model. Complete files that a killed transfer
# left in the staging folder are not downloaded again.


WINDOW_S = 5.0


@dataclass
class Throughput:
    """The rate of the last 5 s, from the number of bytes received so far."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, done_bytes: int, now_s: float | None = None) -> float:
        """Record the bytes received so far. Returns bytes per second; 0.0 while unknown."""
        now_s = time.monotonic() if now_s is None else now_s
        self._samples.append((now_s, done_bytes))
        while now_s - self._samples[0][0] > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        then_s, before = self._samples[0]
        return max(0.0, (done_bytes - before) / (now_s - then_s)) if now_s > then_s else 0.0


def format_time_left(remaining_bytes: int, rate: float) -> str:
    """Return the remaining time at this rate: "40 s left", "12 min left"; "" if unknown."""
    if rate <= 0 or remaining_bytes <= 0:
        return ""
    return f"{units.format_rough_duration(remaining_bytes / rate)} left"


POLL_S = 0.25
VERIFY_NICE = 15
PROGRESS_BYTES = 64 * 2**20  # an attempt that kept this much more than the last counts as progress

#: the mode after one that stalls
NEXT_MODE = {"hf_transfer": "plain", "plain": "hf_transfer", "xet": "hf_transfer"}


@dataclass
class Attempt:
    """The outcome of a transfer process: stalled, failed (kind, message, fix), or neither."""

    stalled: bool = False
    kind: str = ""
    message: str = ""
    fix: str = ""


@dataclass
class Transfer:
    """A download of a source's files into the manifest's folder."""

    source: Source
    manifest: Manifest
    files: Sequence[Mapping[str, Any]]
    context: Context
    stall_s: float
    retry_policy: RetryPolicy = RetryPolicy()
    #: number of hash mismatches, by path
    mismatches: dict[str, int] = field(default_factory=dict)
    #: the address that delivered the last part of each file, by path
    came_from: dict[str, str] = field(default_factory=dict)
    _partial_paths: dict[str, Path] = field(default_factory=dict)
    _base_bytes: int = 0
    _rates: dict[str, Throughput] = field(default_factory=dict)
    _reported_s: float = 0.0

    def __post_init__(self) -> None:
        self.staging = Staging(self.manifest)
        self.missing = {file["path"]: file for file in self.files}
        self.total_bytes = total_bytes(self.files)
        self._hashing: dict[str, Future[bool]] = {}

    def run(self, mode: str) -> str:
        """Download until all files are verified and in place. Returns the mode used last. Raises Failed."""
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="proof", initializer=_lower_priority) as pool:
            self._pool = pool
            self._verify_leftovers()
            tries, kept_bytes = 0, self._resumable_bytes(mode)
            while self.missing:
                attempt, mode = self._run_attempt(mode)
                self._collect_verified()
                if not self.missing:
                    break
                self._refuse_wrong_twice()
                if attempt.kind in ("refused", "full"):
                    self.staging.clean_up(self.files, disk_is_full=attempt.kind == "full")
                    raise Failed(attempt.message, fix=attempt.fix)
                current_bytes = self._resumable_bytes(mode)
                tries, kept_bytes = (0 if current_bytes >= kept_bytes + PROGRESS_BYTES else tries + 1), current_bytes
                if tries >= self.retry_policy.tries:
                    self.staging.clean_up(self.files, disk_is_full=False)
                    raise self._give_up_error(attempt)
                mode = self._prepare_retry(attempt, mode, tries)
        self.staging.move_into_place(self.files)
        return mode

    # -- one attempt ---------------------------------------------------------------------------------------------

    def _run_attempt(self, mode: str) -> tuple[Attempt, str]:
        """Start a child that downloads the missing files, and watch it. Returns its outcome and the mode it used."""
        child = self._start_child(mode)
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_read_lines, args=(child, lines), daemon=True).start()
        attempt, last_change_s, disk_state = Attempt(), time.monotonic(), self._disk_state()
        try:
            while True:
                try:
                    line = lines.get(timeout=POLL_S)
                except queue.Empty:
                    line = {}
                if line is None:
                    if not attempt.kind and child.wait() != 0:
                        attempt.kind, attempt.message = "down", f"the transfer process exited with {child.returncode}."
                    return attempt, mode
                if "chose" in line:
                    mode = line["chose"]
                    self.context.note(f"transfer: {mode} ({line['why']})", detail=True)
                self._handle_event(line, attempt)
                current = self._disk_state()
                if current != disk_state or line:
                    last_change_s, disk_state = time.monotonic(), current
                elif time.monotonic() - last_change_s > self.stall_s:
                    attempt.stalled = True
                    attempt.message = f"no data received for {self.stall_s:g} s."
                    return attempt, mode
                self._report_progress(mode)
        finally:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
            self._partial_paths.clear()

    def _start_child(self, mode: str) -> subprocess.Popen[bytes]:
        files = [
            {key: file[key] for key in ("path", "size_bytes", "sha256", "blob_id")} for file in self.missing.values()
        ]
        token = self.source.token
        request = {
            "url": self.source.url,
            "also": list(self.source.other_urls),
            "id": self.source.id,
            "commit": self.source.commit,
            "token": token.reveal() if token else "",
            "staging": str(self.staging.path),
            "files": files,
            "mode": mode,
            "again": [path for path in self.mismatches if path in self.missing],
            "retries": self.retry_policy.hub_retries,
            "stall_s": self.stall_s,
        }
        import_root = str(Path(sparkwright.__file__).parents[1])
        env = {**self.context.machine.env, "PYTHONPATH": import_root, "MALLOC_ARENA_MAX": "2"}
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparkwright.host.models.transfer_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
        )
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # it exited at once; its exit code has the reason
        return child

    def _handle_event(self, line: Mapping[str, Any], attempt: Attempt) -> None:
        if "begin" in line:
            self._partial_paths[line["begin"]] = Path(line["partial"])
        elif "done" in line:
            self._partial_paths.pop(line["done"], None)
            self.came_from[line["done"]] = line["from"]
            self._verify_file(self.missing[line["done"]])
        elif "lost" in line and line["lost"] in (self.source.url, *self.source.other_urls) and self.source.other_urls:
            self.source = self.source.without_address(line["lost"])
            self.context.note(
                f"{line['message']} Continuing over {', '.join(source.url for source in self.source.per_address)}."
            )
        elif "failed" in line:
            attempt.kind, attempt.message, attempt.fix = line["kind"], line["message"], line["fix"]

    # -- proof ---------------------------------------------------------------------------------------------------

    def _verify_leftovers(self) -> None:
        """Verify the complete files that an earlier run left in the staging folder."""
        for file in self.missing.values():
            if self.staging.has_full_file(file):
                self._verify_file(file)
        self._collect_verified()
        self.mismatches.clear()

    def _verify_file(self, file: Mapping[str, Any]) -> None:
        self._hashing[file["path"]] = self._pool.submit(self.staging.verify_or_remove, file)

    def _collect_verified(self) -> None:
        """Wait for the running verifications; verified files are no longer missing."""
        while any(not job.done() for job in self._hashing.values()):
            self.context.progress(
                self._received_bytes(), self.total_bytes, unit="bytes", text=f"verifying {self.source.id}"
            )
            time.sleep(POLL_S / 10)
        jobs, self._hashing = self._hashing, {}
        for path, job in jobs.items():
            if job.result():
                self._base_bytes += int(self.missing[path]["size_bytes"])
                self.staging.mark_verified(self.missing.pop(path))
            else:
                self.mismatches[path] = self.mismatches.get(path, 0) + 1
        if jobs:
            self.manifest.save()

    def _refuse_wrong_twice(self) -> None:
        twice = sorted(path for path, times in self.mismatches.items() if times > 1)
        if twice:
            self.staging.clean_up(self.files, disk_is_full=False)
            fix = (
                "The hub serves content that does not match its hashes; try `transfer: plain`, or another HF_ENDPOINT."
            )
            raise Failed(f"hash mismatch twice: {join_first(twice, 3)}.", fix=fix)
        once = sorted(path for path in self.mismatches if path in self.missing)
        if once:
            self.context.note(f"hash mismatch after download, retrying: {join_first(once, 3)}")

    # -- between attempts ----------------------------------------------------------------------------------------

    def _prepare_retry(self, attempt: Attempt, mode: str, tries: int) -> str:
        """Report the failure, pause longer each time, and return the next mode: another one after a stall."""
        next_mode = NEXT_MODE[mode] if attempt.stalled else mode
        if attempt.message:
            pause_s = 0.0 if attempt.stalled else self.retry_policy.pause_s(tries)
            action = f"Continuing with {next_mode}" if next_mode != mode else "Retrying"
            self.context.note(f"{attempt.message} {action}{f' in {pause_s:g} s' if pause_s else ''}.")
            time.sleep(pause_s)
        return next_mode

    def _give_up_error(self, attempt: Attempt) -> Failed:
        complete_count = len(self.files) - len(self.missing)
        message = attempt.message or "no file was downloaded."
        summary = (
            f"{complete_count} of {len(self.files)} missing files downloaded; still missing: "
            f"{join_first(sorted(self.missing), 3)}"
        )
        fix = attempt.fix or "Run it again: complete files are kept."
        return hub.HubDown(f"{message} {summary}.", fix=fix)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _resumable_bytes(self, mode: str) -> int:
        """Return the number of bytes that the next attempt need not download."""
        return self._received_bytes() if mode in file_transfer.SEQUENTIAL_MODES else self._base_bytes

    def _disk_state(self) -> tuple[int, ...]:
        """Return a value that changes with every byte received: allocated blocks, not sizes, which range requests set at once."""
        return (
            len(self.missing),
            len(self._hashing),
            *(_allocated_bytes(path) for path in self._partial_paths.values()),
        )

    def _received_bytes(self) -> int:
        """Return the number of bytes received."""
        complete_bytes = sum(int(self.missing[path]["size_bytes"]) for path in self._hashing if path in self.missing)
        partial_bytes = sum(_allocated_bytes(path) for path in self.staging.partial_files())
        return min(self._base_bytes + complete_bytes + partial_bytes, self.total_bytes)

    def _report_progress(self, mode: str) -> None:
        if time.monotonic() - self._reported_s < self.retry_policy.progress_interval_s:
            return
        self._reported_s, done = time.monotonic(), self._received_bytes()
        rate = self._rates.setdefault("", Throughput()).add(done)
        parts = [self._file_progress(path) for path in list(self._partial_paths) if path in self.missing]
        parts.sort(key=lambda part: -part["done"])
        overall = [units.format_rate(rate), format_time_left(self.total_bytes - done, rate)] if rate else []
        current_file = [_format_part(parts[0]), f"and {len(parts) - 1} more" if len(parts) > 1 else ""] if parts else []
        text = ", ".join(word for word in [mode, *overall, *current_file] if word)
        self.context.progress(done, self.total_bytes, unit="bytes", text=text, parts=parts)

    def _file_progress(self, path: str) -> dict[str, Any]:
        size = int(self.missing[path]["size_bytes"])
        done = min(_allocated_bytes(self._partial_paths[path]), size)
        rate = self._rates.setdefault(path, Throughput()).add(done)
        left_s = round((size - done) / rate, 1) if rate else None
        return {"path": path, "done": done, "total": size, "rate": round(rate), "left_s": left_s}


def _format_part(part: Mapping[str, Any]) -> str:
    share = 100 * part["done"] // max(part["total"], 1)
    rate_text = (
        f" at {units.format_rate(part['rate'])}, {format_time_left(part['total'] - part['done'], part['rate'])}"
        if part["rate"]
        else ""
    )
    return f"{part['path']} {share} %{rate_text}".rstrip(", ")


def _read_lines(child: subprocess.Popen[bytes], lines: queue.Queue[dict[str, Any] | None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            with contextlib.suppress(ValueError):  # a library may print something
                lines.put(json.loads(line))
    lines.put(None)


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _lower_priority() -> None:
    """Lower this thread's priority below the transfer's and the running server's: verification can wait for the last byte."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), VERIFY_NICE)
