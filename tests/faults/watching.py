"""Looking on all the while that something else happens."""

import threading
from typing import Self


class Watcher:
    """A thread that looks again and again, from `with` to its end. every_s: between two looks."""

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
        """Look once."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._done.wait(self.every_s):
            self.look()
