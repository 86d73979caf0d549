"""Whether this machine kept time. A virtual one whose processor is given to others for a moment keeps no test's time either.

A process of its own, so that nothing which the tests' own process does (a garbage collection, a lock) is taken for it.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import select, sys, time
worst_s = 0.0
while True:
    began_s = time.perf_counter()
    asked, _, _ = select.select([sys.stdin.buffer], [], [], 0.001)
    worst_s = max(worst_s, time.perf_counter() - began_s - 0.001)
    if asked:
        if not sys.stdin.buffer.raw.read(1):
            break
        print(worst_s, flush=True)
        worst_s = 0.0
"""


class Watch:
    """Begins when it is made, and ends with this process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def worst_s(self) -> float:
        """The latest that somebody who sleeps for a millisecond woke up since this was asked last, in seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"?")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())
