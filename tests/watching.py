"""Command lines and environments of all processes during a test."""

from __future__ import annotations

import base64
import os
import threading
from pathlib import Path
from types import TracebackType

import psutil


class ProcessWatcher:
    """A thread that reads /proc of all processes during the `with` block.

    seen: their command lines. leaks: (command line, place) of each process that has the secret on its command line or in its
    environment.
    """

    PAUSE_S = 0.005

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.seen: set[str] = set()
        self.leaks: set[tuple[str, str]] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ProcessWatcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._thread.join()

    def saw_command(self, words: str) -> bool:
        """Return True if a process had these words on its command line."""
        return any(words in line for line in self.seen)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            for pid in psutil.pids():
                if pid != os.getpid():
                    self._read(Path(f"/proc/{pid}"))
            self._stopped.wait(self.PAUSE_S)

    def _read(self, process: Path) -> None:
        try:
            line, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            return
        words = line.replace(b"\0", b" ").decode(errors="replace").strip()
        self.seen.add(words)
        for place, text in (("command line", line), ("environment", environment)):
            if self.secret in text:
                self.leaks.add((words, place))


def find_files_with_secret(secret: str, *folders: Path) -> list[str]:
    """Return the files below folders that contain a secret, plain or encoded."""
    forms = (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1], secret.encode().hex().encode())
    paths = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                paths += [str(path) for form in forms if form in data]
    return paths
