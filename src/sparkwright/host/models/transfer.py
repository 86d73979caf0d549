"""Reliable transfers: a child process downloads; this process watches the bytes arrive on disk, and retries or changes the mode.

Files go to a staging folder inside the model's folder and are verified there. When all are correct, they replace the old files
together, so a server never reads a wrong or incomplete model. Complete files that a killed transfer left in the staging folder
are not downloaded again.
"""

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
from sparkwright.trust.secret_names import PROXY_VARIABLES
from sparkwright.visible import join_first

#: the throughput is averaged over this time
WINDOW_S = 5.0
POLL_S = 0.25
VERIFY_NICENESS = 15
#: minimum increase of the bytes that need no further download, for an attempt to count as progress
MIN_PROGRESS_BYTES = 64 * 2**20
#: consecutive tries without progress after which a download fails
DEFAULT_MAX_TRIES = 6
#: the mode to use after one that stalled
MODE_AFTER_STALL = {"hf_transfer": "plain", "plain": "hf_transfer", "xet": "hf_transfer"}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a transfer, and the pauses between them."""

    #: consecutive tries without progress after which the transfer fails
    max_tries: int = DEFAULT_MAX_TRIES
    #: pauses before the second, third, ... try; the last one is repeated
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0, 60.0)
    #: time between two progress messages, which list all files in progress and are written to the journal
    progress_interval_s: float = 1.0
    #: unreported retries of each request (after 0.5 s, 1 s ...); few, so that a waiting user soon sees the reason
    hub_retries: int = 2

    def pause_s(self, failed_tries: int) -> float:
        """Return the pause after this many consecutive tries without progress."""
        return self.pauses_s[min(max(failed_tries - 1, 0), len(self.pauses_s) - 1)]


@dataclass
class Throughput:
    """The average rate over the last WINDOW_S."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, received_bytes: int, now_s: float | None = None) -> float:
        """Record the total number of bytes received so far. Returns bytes per second, or 0.0 if unknown."""
        now_s = time.monotonic() if now_s is None else now_s
        self._samples.append((now_s, received_bytes))
        while now_s - self._samples[0][0] > WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()
        oldest_s, oldest_bytes = self._samples[0]
        return max(0.0, (received_bytes - oldest_bytes) / (now_s - oldest_s)) if now_s > oldest_s else 0.0


def format_time_left(remaining_bytes: int, rate: float) -> str:
    """Return the remaining time, such as "12 min left", or "" if the rate is unknown or nothing remains."""
    if rate <= 0 or remaining_bytes <= 0:
        return ""
    return f"{units.format_rough_duration(remaining_bytes / rate)} left"


@dataclass
class Attempt:
    """The outcome of one transfer process. After a success, all fields have their defaults."""

    stalled: bool = False
    #: the kind of failure: down, full or refused
    kind: str = ""
    message: str = ""
    fix: str = ""
    #: pause that the hub requests before a retry
    pause_s: float = 0.0


@dataclass
class Transfer:
    """A download of a model's files into its manifest's folder."""

    source: Source
    manifest: Manifest
    files: Sequence[Mapping[str, Any]]
    context: Context
    stall_s: float
    retry_policy: RetryPolicy = RetryPolicy()
    #: number of hash mismatches, by path
    mismatches: dict[str, int] = field(default_factory=dict)
    #: URL of the address that delivered the last part of each file, by path
    url_by_path: dict[str, str] = field(default_factory=dict)
    _partial_paths: dict[str, Path] = field(default_factory=dict)
    #: total size of the verified files
    _verified_bytes: int = 0
    #: rate of each file by path, and of all files together under ""
    _rates: dict[str, Throughput] = field(default_factory=dict)
    #: time of the last progress message
    _reported_s: float = 0.0

    def __post_init__(self) -> None:
        self.staging = Staging(self.manifest)
        self.missing_files = {file["path"]: file for file in self.files}
        self.total_bytes = total_bytes(self.files)
        self._hash_jobs: dict[str, Future[bool]] = {}

    def run(self, mode: str) -> str:
        """Download until all files are verified and in place. Returns the last mode used. Raises Failed."""
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="verify", initializer=_lower_priority) as pool:
            self._pool = pool
            self._verify_leftovers()
            failed_tries, resumable_bytes = 0, self._resumable_bytes(mode)
            while self.missing_files:
                attempt, mode = self._run_attempt(mode)
                self._collect_verified()
                if not self.missing_files:
                    break
                self._check_mismatches(mode)
                if attempt.kind in ("refused", "full"):
                    self.staging.clean_up(self.files, disk_is_full=attempt.kind == "full")
                    raise Failed(attempt.message, fix=attempt.fix)
                previous_bytes, resumable_bytes = resumable_bytes, self._resumable_bytes(mode)
                failed_tries = 0 if resumable_bytes >= previous_bytes + MIN_PROGRESS_BYTES else failed_tries + 1
                if failed_tries >= self.retry_policy.max_tries:
                    self.staging.clean_up(self.files, disk_is_full=False)
                    raise self._build_final_error(attempt)
                mode = self._prepare_retry(attempt, mode, failed_tries)
        self.staging.move_into_place(self.files)
        return mode

    # -- one attempt ---------------------------------------------------------------------------------------------

    def _run_attempt(self, mode: str) -> tuple[Attempt, str]:
        """Download the missing files in a child process until it exits or stalls. Returns the outcome and the mode it used."""
        child = self._start_child(mode)
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=_read_events, args=(child, events), daemon=True).start()
        attempt, last_change_s, disk_state = Attempt(), time.monotonic(), self._disk_state()
        try:
            while True:
                try:
                    event = events.get(timeout=POLL_S)
                except queue.Empty:
                    event = {}
                if event is None:
                    if not attempt.kind and child.wait() != 0:
                        attempt.kind, attempt.message = "down", f"the transfer process exited with {child.returncode}."
                    return attempt, mode
                if "chose" in event:
                    mode = event["chose"]
                    self.context.note(f"transfer: {mode} ({event['why']})", detail=True)
                self._handle_event(event, attempt)
                current_disk_state = self._disk_state()
                if current_disk_state != disk_state or event:
                    last_change_s, disk_state = time.monotonic(), current_disk_state
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
            {key: file[key] for key in ("path", "size_bytes", "sha256", "blob_id")}
            for file in self.missing_files.values()
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
            "again": [path for path in self.mismatches if path in self.missing_files],
            "retries": self.retry_policy.hub_retries,
            "stall_s": self.stall_s,
        }
        import_root = str(Path(sparkwright.__file__).parents[1])
        env = {**os.environ, **self.context.machine.env, "PYTHONPATH": import_root, "MALLOC_ARENA_MAX": "2"}
        if self.source.is_peer:
            env = {name: value for name, value in env.items() if name.lower() not in PROXY_VARIABLES}
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "sparkwright.host.models.transfer_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
        )
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # the child has exited already; `_run_attempt` reports its exit code
        return child

    def _handle_event(self, event: Mapping[str, Any], attempt: Attempt) -> None:
        if "begin" in event:
            self._partial_paths[event["begin"]] = Path(event["partial"])
        elif "done" in event:
            self._partial_paths.pop(event["done"], None)
            self.url_by_path[event["done"]] = event["from"]
            self._verify_file(self.missing_files[event["done"]])
        elif "lost" in event and event["lost"] in (self.source.url, *self.source.other_urls) and self.source.other_urls:
            self.source = self.source.without_address(event["lost"])
            urls = ", ".join(source.url for source in self.source.single_address_sources)
            self.context.note(f"{event['message']} Continuing over {urls}.")
        elif "failed" in event:
            attempt.kind, attempt.message, attempt.fix = event["kind"], event["message"], event["fix"]
            attempt.pause_s = event.get("pause_s", 0.0)

    # -- verification --------------------------------------------------------------------------------------------

    def _verify_leftovers(self) -> None:
        """Verify the complete files that an earlier run left in the staging folder."""
        for file in self.missing_files.values():
            if self.staging.has_full_file(file):
                self._verify_file(file)
        self._collect_verified()
        self.mismatches.clear()

    def _verify_file(self, file: Mapping[str, Any]) -> None:
        self._hash_jobs[file["path"]] = self._pool.submit(self.staging.verify_or_remove, file)

    def _collect_verified(self) -> None:
        """Wait for the running verifications, and update `missing_files` and `mismatches` with their results."""
        while any(not job.done() for job in self._hash_jobs.values()):
            self.context.progress(
                self._received_bytes(), self.total_bytes, unit="bytes", text=f"verifying {self.source.id}"
            )
            time.sleep(POLL_S / 10)
        jobs, self._hash_jobs = self._hash_jobs, {}
        for path, job in jobs.items():
            if job.result():
                self._verified_bytes += int(self.missing_files[path]["size_bytes"])
                self.staging.mark_verified(self.missing_files.pop(path))
            else:
                self.mismatches[path] = self.mismatches.get(path, 0) + 1
        if jobs:
            self.manifest.save()

    def _check_mismatches(self, mode: str) -> None:
        """Raise Failed if any file has mismatched its hash twice, and emit a note about files that mismatched once."""
        mismatched_twice = sorted(path for path, count in self.mismatches.items() if count > 1)
        if mismatched_twice:
            self.staging.clean_up(self.files, disk_is_full=False)
            remedy = "another HF_ENDPOINT" if mode == "plain" else "`transfer: plain`, or another HF_ENDPOINT"
            fix = f"The hub's files do not match its hashes: try {remedy}."
            raise Failed(f"hash mismatch twice: {join_first(mismatched_twice, 3)}.", fix=fix)
        mismatched_once = sorted(path for path in self.mismatches if path in self.missing_files)
        if mismatched_once:
            self.context.note(f"hash mismatch after download, retrying: {join_first(mismatched_once, 3)}")

    # -- between attempts ----------------------------------------------------------------------------------------

    def _prepare_retry(self, attempt: Attempt, mode: str, failed_tries: int) -> str:
        """Report the failure, pause (longer each time), and return the mode for the next try, which differs after a stall."""
        next_mode = MODE_AFTER_STALL[mode] if attempt.stalled else mode
        if attempt.message:
            pause_s = 0.0 if attempt.stalled else max(attempt.pause_s, self.retry_policy.pause_s(failed_tries))
            action = f"Continuing with {next_mode}" if next_mode != mode else "Retrying"
            self.context.note(f"{attempt.message} {action}{f' in {pause_s:.0f} s' if pause_s else ''}.")
            time.sleep(pause_s)
        return next_mode

    def _build_final_error(self, attempt: Attempt) -> Failed:
        message = attempt.message or "no file was downloaded."
        summary = (
            f"{len(self.files) - len(self.missing_files)} of {len(self.files)} missing files downloaded; "
            f"still missing: {join_first(sorted(self.missing_files), 3)}"
        )
        fix = attempt.fix or "Run the command again: complete files are kept."
        return hub.HubDown(f"{message} {summary}.", fix=fix)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _resumable_bytes(self, mode: str) -> int:
        """Return the number of bytes that the next attempt does not have to download."""
        return self._received_bytes() if mode in file_transfer.SEQUENTIAL_MODES else self._verified_bytes

    def _disk_state(self) -> tuple[int, ...]:
        """Return a value that changes while data is received."""
        allocated_bytes = (_allocated_bytes(path) for path in self._partial_paths.values())
        return (len(self.missing_files), len(self._hash_jobs), *allocated_bytes)

    def _received_bytes(self) -> int:
        complete_bytes = sum(
            int(self.missing_files[path]["size_bytes"]) for path in self._hash_jobs if path in self.missing_files
        )
        begun_bytes = sum(self._begun_bytes(path) for path in self._partial_paths if path in self.missing_files)
        leftovers = set(self.staging.partial_files()) - set(self._partial_paths.values())
        leftover_bytes = sum(_allocated_bytes(path) for path in leftovers)
        return min(self._verified_bytes + complete_bytes + begun_bytes + leftover_bytes, self.total_bytes)

    def _begun_bytes(self, path: str) -> int:
        """Return the received bytes of a file. The transfer process renames a complete file before it reports it."""
        partial_bytes, file = _allocated_bytes(self._partial_paths[path]), self.missing_files[path]
        return int(file["size_bytes"]) if self.staging.has_full_file(file) else partial_bytes

    def _report_progress(self, mode: str) -> None:
        if time.monotonic() - self._reported_s < self.retry_policy.progress_interval_s:
            return
        self._reported_s, received_bytes = time.monotonic(), self._received_bytes()
        rate = self._rates.setdefault("", Throughput()).add(received_bytes)
        files = [self._file_progress(path) for path in list(self._partial_paths) if path in self.missing_files]
        files.sort(key=lambda file: -file["done"])
        phrases = [mode]
        if rate:
            phrases += [units.format_rate(rate), format_time_left(self.total_bytes - received_bytes, rate)]
        if files:
            phrases += [_format_file_progress(files[0]), f"and {len(files) - 1} more" if len(files) > 1 else ""]
        text = ", ".join(phrase for phrase in phrases if phrase)
        self.context.progress(received_bytes, self.total_bytes, unit="bytes", text=text, parts=files)

    def _file_progress(self, path: str) -> dict[str, Any]:
        size_bytes = int(self.missing_files[path]["size_bytes"])
        received_bytes = min(_allocated_bytes(self._partial_paths[path]), size_bytes)
        rate = self._rates.setdefault(path, Throughput()).add(received_bytes)
        left_s = round((size_bytes - received_bytes) / rate, 1) if rate else None
        return {"path": path, "done": received_bytes, "total": size_bytes, "rate": round(rate), "left_s": left_s}


def _format_file_progress(file: Mapping[str, Any]) -> str:
    text = f"{file['path']} {100 * file['done'] // max(file['total'], 1)} %"
    if rate := file["rate"]:
        text += f" at {units.format_rate(rate)}, {format_time_left(file['total'] - file['done'], rate)}"
    return text.rstrip(", ")


def _read_events(child: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]) -> None:
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            with contextlib.suppress(ValueError):  # output of a library
                events.put(json.loads(line))
    events.put(None)


def _allocated_bytes(path: Path) -> int:
    """Return the allocated size of a file; range requests set its apparent size in advance."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _lower_priority() -> None:
    """Lower this thread's priority below the transfer's and the running server's."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), VERIFY_NICENESS)
