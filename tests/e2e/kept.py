"""A deployed pretend Spark that is laid down again instead of deployed again.

Paths and the port stand in containers and in state files: whoever gets it works in the same folder, behind the same port. Its
daemon ended hard, so that its container comes back by its restart policy, as after a reboot.
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
#: what a user writes, beside what commands leave
PROJECT = ("hosts", "recipes", "playbooks", "templates")


class Kept:
    """folder: where it is used, by one desk at a time; the copy stands beside it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="desk-"))  # short: a unix socket's path has a limit
        self.port = free_port()
        self._copy = self.folder.with_name(f"{self.folder.name}.kept")
        self._lent = False
        self._models: dict[str, str] = {}
        self._given: dict[str, bytes] = {}
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        atexit.register(shutil.rmtree, self._copy, ignore_errors=True)

    @property
    def free(self) -> bool:
        """Whether no desk has it, and nobody else listens on its port."""
        return not self._lent and _free(self.port)

    @contextlib.contextmanager
    def lent(self) -> Iterator[Kept]:
        """For a desk, in an empty folder."""
        self._lent = True
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        try:
            yield self
        finally:
            self._lent = False

    def given(self) -> None:
        """Remember the project that stands in the folder: the one that the copy is of."""
        self._given = _project(self.folder)

    def as_given(self) -> bool:
        """Whether it is still as it was given, and on no Spark yet."""
        return not (self.folder / ".sandbox").exists() and _project(self.folder) == self._given

    @property
    def missing(self) -> bool:
        """Whether there is no copy yet, or a test has changed the model's files since, which are the same in both places."""
        return not self._copy.exists() or _digests(self._copy) != self._models

    def keep(self) -> None:
        """Copy what stands in the folder, and go on with it."""
        sandbox = self.folder / ".sandbox"
        _killed(sandbox)
        shutil.rmtree(self._copy, ignore_errors=True)
        _copied(self.folder, self._copy)
        self._models = _digests(self._copy)
        renew_ctimes(sandbox)
        _up(sandbox)

    def lay(self) -> None:
        """Put the copy into the folder, and go on with it."""
        _copied(self._copy, self.folder)
        renew_ctimes(self.folder / ".sandbox")
        _up(self.folder / ".sandbox")


_OF_THIS_WORKER: list[Kept] = []


def a_free_one() -> Kept:
    """One that nobody has, of this process; a module's own desk has another than those of its tests."""
    found = next((item for item in _OF_THIS_WORKER if item.free), None)
    if found is None:
        found = Kept()
        _OF_THIS_WORKER.append(found)
    return found


def _project(folder: Path) -> dict[str, bytes]:
    paths = [path for name in PROJECT for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _copied(source: Path, target: Path) -> None:
    """A copy, but of the model's files, which are known again by their inodes: they are linked."""

    def one(from_path: str, to_path: str) -> None:
        (os.link if f"/{MODELS}/" in from_path else shutil.copy2)(from_path, to_path)

    ignored = shutil.ignore_patterns("*.sock")
    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=ignored, copy_function=one)


def renew_ctimes(sandbox: Path) -> None:
    """Renew the ctime of the files that were proved: a link to one changes it, as any change of its owner, name or bytes does."""
    for manifest in (sandbox / "home").glob(".local/state/sparkwright/**/model-*.json"):
        data = json.loads(manifest.read_text())
        folder = Path(data["folder"])
        for path, row in data["files"].items():
            found = (folder / path).stat() if (folder / path).exists() else None
            if found is not None and row[:3] == [found.st_size, found.st_mtime_ns, found.st_ino]:
                row[3] = found.st_ctime_ns
        manifest.write_text(json.dumps(data))


def _digests(folder: Path) -> dict[str, str]:
    paths = [path for path in (folder / MODELS).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _up(sandbox: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        control.up(sandbox)


def _killed(sandbox: Path) -> None:
    """End the daemon as a power cut would, and wait until it is gone."""
    pid = json.loads((sandbox / "state.json").read_text())["pid"]
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    select.select([descriptor], [], [], 10)
    os.close(descriptor)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
