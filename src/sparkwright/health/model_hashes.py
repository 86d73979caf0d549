"""Periodically hash a model's files in full, in quiet hours and at the lowest priority.

A file's stamp (size, times, inode) reveals writes to the file. Only a hash of its contents detects a defective disk or
writes to the block device. `health.install --verify-models 7d --quiet-hours 02:00-05:00` enables it; each scheduled check
continues where the last one stopped.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.errors import SparkwrightError
from sparkwright.health.judging.observation import ModelFiles
from sparkwright.health.settings import Settings
from sparkwright.host.containers import container_labels, containers, server_key
from sparkwright.host.models.manifest import Manifest, expected_hash, hash_file, read_stamp
from sparkwright.host.module import Context
from sparkwright.host.records import history, verified_states
from sparkwright.host.runs import lock
from sparkwright.measure import server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.trust.shapes import build_dataclass

STATE_PREFIX = "hashes-"
ACTOR = "the health check"
#: time in seconds after which a check starts no more files, so that it ends before the next check
TIME_SLICE_S = 120.0
#: time limit for a single file, in seconds
FILE_TIMEOUT_S = 1200.0
#: interval at which the running requests and the lock are checked, in seconds
POLL_INTERVAL_S = 2.0


class _Interrupted(Exception):
    """Raised while the server has requests or a run is in progress on the host, or if a file takes too long."""


@dataclass
class ModelHashes:
    """Progress of the periodic hash of a model's folder, stored in the host's state folder."""

    folder: str
    #: commit of the files; a different commit starts over
    commit: str = ""
    #: start of this round, in seconds since the epoch; 0 before the first
    began_s: float = 0.0
    #: end of the last complete round, in seconds since the epoch; 0 before the first
    finished_s: float = 0.0
    #: paths hashed in this round
    read: list[str] = field(default_factory=list)
    #: paths whose content differs from the verified content, until the next deploy downloads them again
    wrong: list[str] = field(default_factory=list)
    #: reason why hashing is paused; empty if it is not
    paused: str = ""

    @classmethod
    def load(cls, context: Context, manifest: Manifest) -> ModelHashes:
        """Read the progress for a folder, or start over if it is missing, invalid or for another commit."""
        stored = context.state.read(_state_name(manifest.folder)) or {}
        try:
            hashes = build_dataclass(cls, stored, folder=str(manifest.folder))
        except TypeError:
            return cls(str(manifest.folder), manifest.commit)
        has_numbers = isinstance(hashes.began_s, int | float) and isinstance(hashes.finished_s, int | float)
        has_lists = isinstance(hashes.read, list) and isinstance(hashes.wrong, list)
        if not (has_numbers and has_lists) or hashes.commit != manifest.commit:
            return cls(str(manifest.folder), manifest.commit)
        hashes.wrong = [path for path in hashes.wrong if path not in manifest.rows]
        return hashes

    def save(self, context: Context) -> None:
        """Save the progress for the next check."""
        context.state.write(_state_name(Path(self.folder)), asdict(self))


def load_model_files(context: Context, settings: Settings, now_s: float) -> ModelFiles | None:
    """Return the state of the periodic hash, or None if it is not enabled or the server has no model folder."""
    manifest = _load_manifest(context) if settings.verify_every_s else None
    if manifest is None:
        return None
    if not manifest.about.get("paths"):
        return ModelFiles(0, 0, (), "", None, False)
    hashes = ModelHashes.load(context, manifest)
    since_s = hashes.finished_s or hashes.began_s
    is_late = bool(since_s) and now_s - since_s > 2 * settings.verify_every_s
    age_s = now_s - hashes.finished_s if hashes.finished_s else None
    file_count = len(manifest.entries()) + len(hashes.wrong)
    return ModelFiles(file_count, len(hashes.read), tuple(hashes.wrong), hashes.paused, age_s, is_late)


def hash_more_files(
    context: Context,
    settings: Settings,
    *,
    now: Callable[[], float] = time.time,
    time_slice_s: float = TIME_SLICE_S,
) -> str:
    """Hash more files if a round is due within the quiet hours. Requests and runs pause it.

    Permanently lowers the priority of this process.

    Args:
        now: returns the time in seconds since the epoch.
        time_slice_s: time after which no more files are started.

    Returns:
        A line for the check's log; empty if nothing was due.
    """
    manifest = _load_manifest(context) if settings.verify_every_s else None
    if manifest is None or not manifest.about.get("paths") or context.check:
        return ""
    hashes = ModelHashes.load(context, manifest)
    if not hashes.began_s:  # the check during `health.install` only records that hashing is enabled
        hashes.began_s = now()
        hashes.save(context)
        return ""
    if hashes.finished_s and now() - hashes.finished_s < settings.verify_every_s:
        return ""
    if not is_quiet(settings.quiet_hours, now()):
        _save_progress(context, hashes, "outside the quiet hours")
        return ""
    if not hashes.read:
        hashes.began_s = now()
    _set_lowest_priority()
    return _hash_files(context, manifest, hashes, now, time_slice_s)


def is_quiet(quiet_hours: str, now_s: float) -> bool:
    """Return True if a time is within the quiet hours (local time). quiet_hours: such as 22:00-05:00; empty means any time."""
    if not quiet_hours:
        return True
    quiet_start, quiet_end = quiet_hours.split("-")
    time_of_day = time.strftime("%H:%M", time.localtime(now_s))
    return (
        quiet_start <= time_of_day < quiet_end
        if quiet_start < quiet_end
        else time_of_day >= quiet_start or time_of_day < quiet_end
    )


# -- hashing -----------------------------------------------------------------------------------------------------------


def _hash_files(
    context: Context, manifest: Manifest, hashes: ModelHashes, now: Callable[[], float], time_slice_s: float
) -> str:
    """Hash the remaining files of this round until the time slice ends."""
    began_s, interrupt_check = time.monotonic(), _InterruptCheck(context)
    for file in manifest.entries():
        if file["path"] in hashes.read:
            continue
        if time.monotonic() - began_s > time_slice_s:
            return _save_progress(context, hashes, "")
        try:
            if not _has_verified_content(manifest, file, interrupt_check):
                _unverify_file(context, manifest, file["path"])
                hashes.wrong.append(file["path"])
        except (_Interrupted, SparkwrightError) as error:
            return _save_progress(context, hashes, str(error))
        hashes.read.append(file["path"])
        hashes.save(context)
    hashes.finished_s, hashes.read = now(), []
    outcome = f"content of {len(hashes.wrong)} changed" if hashes.wrong else "content as verified"
    return _save_progress(context, hashes, "") + f", finished: {outcome}"


def _has_verified_content(manifest: Manifest, file: Mapping[str, Any], interrupt_check: _InterruptCheck) -> bool:
    """Return True if a file has the verified content, or if its stamp changed, which the question `drift` reports."""
    path = manifest.folder / file["path"]
    stamp = read_stamp(path)
    interrupt_check.begin()
    actual_hash = hash_file(path, file, interrupt_check.on_bytes_read, drop_cached_pages=True)
    return actual_hash == expected_hash(file) or stamp != read_stamp(path) or not manifest.is_verified(file)


def _unverify_file(context: Context, manifest: Manifest, path: str) -> None:
    """Remove a file from the manifest, so that the next deploy downloads it.

    Raises Refused while a run is in progress on the host.
    """
    owner = lock.LockOwner(
        "recording a damaged model file", history.requester(context) or ACTOR, context.run_id, os.getpid(), time.time()
    )
    with lock.acquire(context.state, owner, host="the host"):
        current_manifest = Manifest.load(context.state, manifest.folder)
        current_manifest.rows.pop(path, None)
        current_manifest.save()


def _save_progress(context: Context, hashes: ModelHashes, pause_reason: str) -> str:
    """Save the progress, and return a line for the check's log. pause_reason: empty without a pause."""
    hashes.paused = pause_reason
    hashes.save(context)
    return f"model files: {len(hashes.read)} hashed" + (f"; paused: {pause_reason}" if pause_reason else "")


class _InterruptCheck:
    """Interrupts hashing when a request arrives or a run starts, or if a file takes too long."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._began_s = self._checked_s = 0.0

    def begin(self) -> None:
        """Start the time limit of a file. Raises _Interrupted as `on_bytes_read` does."""
        self._began_s = time.monotonic()
        self._check_interrupts()

    def on_bytes_read(self, count: int) -> None:
        """Callback of `hash_file` after each chunk of `count` bytes. Raises _Interrupted."""
        now_s = time.monotonic()
        if now_s - self._began_s > FILE_TIMEOUT_S:
            raise _Interrupted(f"a file could not be read within {FILE_TIMEOUT_S:g} s")
        if now_s - self._checked_s > POLL_INTERVAL_S:
            self._check_interrupts()

    def _check_interrupts(self) -> None:
        self._checked_s = time.monotonic()
        owner, is_alive = lock.inspect(self._context.state)
        if owner is not None and is_alive:
            raise _Interrupted(f"in progress: {owner}")
        if running := _count_running_requests(self._context):
            raise _Interrupted(f"requests are running ({running:g})")


def _count_running_requests(context: Context) -> float:
    """Return the number of running requests; 0 if it is unknown."""
    spec = verified_states.load_last(context.state).spec
    try:
        inspected = containers.inspect(context.docker(), str(spec.get("name", "")))
    except Exception:  # the Docker Engine does not answer
        return 0.0
    url = containers.url_of(inspected) if inspected else ""
    if not inspected or not url or not inspected["State"]["Running"]:
        return 0.0
    key = server_key.read_container_key(context.state, inspected) or ""
    counters = server_counters.read_counters(
        Target(container_labels.engine_of_container(inspected).http, url, api_key=key)
    )[0]
    return counters.get(engine_http.RUNNING) or 0.0


def _set_lowest_priority() -> None:
    """Set the lowest CPU and disk priority for this process."""
    import psutil

    os.nice(19)
    psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _load_manifest(context: Context) -> Manifest | None:
    folder = verified_states.load_last(context.state).model.get("dir")
    return Manifest.load(context.state, context.machine.expand(folder)) if folder else None


def _state_name(folder: Path) -> str:
    return f"{STATE_PREFIX}{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
