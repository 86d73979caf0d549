"""Looks over every process's shoulder: what stands on command lines and in environments while something runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

import psutil


class Watch:
    """Within `with`, reads /proc of everybody again and again.

    seen: the programs that were met, by what their command lines hold. told: (command line, where) of each process that has
    the secret on its command line or in its environment. spared: processes whose environment is the user's own doing.
    """

    PAUSE_S = 0.005

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.seen: set[str] = set()
        self.told: set[tuple[str, str]] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def met(self, words: str) -> bool:
        """Whether a program with these words on its command line was there."""
        return any(words in line for line in self.seen)

    def _look(self) -> None:
        while not self._over.is_set():
            for pid in psutil.pids():
                if pid != os.getpid():
                    self._read(Path(f"/proc/{pid}"))
            self._over.wait(self.PAUSE_S)

    def _read(self, process: Path) -> None:
        try:
            line, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            return
        words = line.replace(b"\0", b" ").decode(errors="replace").strip()
        self.seen.add(words)
        for where, text in (("command line", line), ("environment", environment)):
            if self.secret in text:
                self.told.add((words, where))


def files_with(secret: str, *folders: Path) -> list[str]:
    """The files below folders that hold a secret, as it is or in the encodings it could travel in."""
    import base64

    forms = (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1], secret.encode().hex().encode())
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                found += [str(path) for form in forms if form in data]
    return found
