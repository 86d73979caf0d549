"""Snapshots of a deployed simulated Spark, restored instead of a new deploy.

Containers and state files contain paths and the port, so each user of a snapshot works in the same folder, with the same port. The
daemon is killed, so that the container is started again by its restart policy, as after a reboot.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.sandbox import control
from tests.remote.sshd import free_port

MODELS = ".sandbox/home/models"
#: what a user writes
PROJECT = ("hosts", "recipes", "playbooks", "templates")


class SandboxSnapshot:
    """A snapshot. folder: used by one project at a time; the copy is next to it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="project-"))  # short: a unix socket's path has a limit
        self.port = free_port()
        self._copy = self.folder.with_name(f"{self.folder.name}.kept")
        self._reserved = False
        self._models: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        atexit.register(shutil.rmtree, self._copy, ignore_errors=True)

    @property
    def is_free(self) -> bool:
        return not self._reserved and _is_port_free(self.port)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[SandboxSnapshot]:
        """Reserve it for a project, with an empty folder."""
        self._reserved = True
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        try:
            yield self
        finally:
            self._reserved = False

    def remember_files(self) -> None:
        """Remember the files of the project: the copy is made of an unchanged project."""
        self._files = read_project(self.folder)

    def is_unchanged(self) -> bool:
        """Return True if the project is unchanged since `remember_files`, and not deployed yet."""
        return not (self.folder / ".sandbox").exists() and read_project(self.folder) == self._files

    @property
    def is_missing(self) -> bool:
        """Return True if there is no copy, or a test has changed the model's files, which folder and copy share."""
        return not self._copy.exists() or _model_digests(self._copy) != self._models

    def save(self) -> None:
        """Copy the folder, and start its daemon again."""
        sandbox = self.folder / ".sandbox"
        _kill_daemon(sandbox)
        shutil.rmtree(self._copy, ignore_errors=True)
        _copy(self.folder, self._copy)
        self._models = _model_digests(self._copy)
        renew_ctimes(sandbox)
        _start_daemon(sandbox)

    def restore(self) -> None:
        """Restore the folder from the copy, and start its daemon."""
        _copy(self._copy, self.folder)
        renew_ctimes(self.folder / ".sandbox")
        _start_daemon(self.folder / ".sandbox")


_snapshots: list[SandboxSnapshot] = []


def free_snapshot() -> SandboxSnapshot:
    """Return a free snapshot of this process, or a new one. Projects that exist at the same time have different ones."""
    snapshot = next((item for item in _snapshots if item.is_free), None)
    if snapshot is None:
        snapshot = SandboxSnapshot()
        _snapshots.append(snapshot)
    return snapshot


def read_project(folder: Path) -> dict[str, bytes]:
    """Return the content of each file that a user writes, by its path."""
    paths = [path for name in PROJECT for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _copy(source: Path, target: Path) -> None:
    """Copy a folder; the model's files are linked, because they are recognized by their inodes."""

    def copy_file(from_path: str, to_path: str) -> None:
        (os.link if f"/{MODELS}/" in from_path else shutil.copy2)(from_path, to_path)

    ignored = shutil.ignore_patterns("*.sock")
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignored, copy_function=copy_file)


def renew_ctimes(sandbox: Path) -> None:
    """Renew the recorded ctime of verified files, which a link changes like any change of owner, name or content."""
    for manifest in (sandbox / "home").glob(".local/state/sparkwright/**/model-*.json"):
        data = json.loads(manifest.read_text())
        folder = Path(data["folder"])
        for path, row in data["files"].items():
            status = (folder / path).stat() if (folder / path).exists() else None
            if status is not None and row[:3] == [status.st_size, status.st_mtime_ns, status.st_ino]:
                row[3] = status.st_ctime_ns
        manifest.write_text(json.dumps(data))


def _model_digests(folder: Path) -> dict[str, str]:
    paths = [path for path in (folder / MODELS).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _start_daemon(sandbox: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        control.up(sandbox)


def _kill_daemon(sandbox: Path) -> None:
    """Kill the daemon, as a power cut would, and wait until it is gone."""
    pid = json.loads((sandbox / "state.json").read_text())["pid"]
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    waiting = select.poll()  # unlike `select`, for any number of open files
    waiting.register(descriptor, select.POLLIN)
    waiting.poll(10_000)
    os.close(descriptor)


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
