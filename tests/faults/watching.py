"""Observing a state repeatedly during a test."""

import threading
from typing import Self


class Watcher:
    """A thread that calls `look` at intervals of `every_s` for as long as the `with` block."""

    every_s = 0.1

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._done.wait(self.every_s):
            self.look()
