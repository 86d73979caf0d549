"""`status --watch` in a real terminal: keys, and the terminal as it was afterwards."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.conftest import Desk

PROGRAM = "from sparkwright.cli import main; main()"
#: prints what a command is asked for, as a pager would show it
PAGER = "cat"


class Watched:
    """A program in a terminal of 24 lines and 80 columns."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self.terminal, self.seen = process, terminal, ""

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def until(self, pattern: str, timeout_s: float = 60) -> str:
        """Read until the screen has shown it, since the last call."""
        deadline_s, found = time.monotonic() + timeout_s, ""
        while not re.search(pattern, found):
            assert time.monotonic() < deadline_s, found
            if select.select([self.terminal], [], [], 0.2)[0]:
                found += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen += found
        return found


@contextmanager
def watching(desk: Desk) -> Iterator[Watched]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "TERM": "xterm-256color", "PAGER": PAGER}
    words = ["status", "--host", "sandbox", "--watch", "--every", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=desk.root,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        yield Watched(process, ours)
        assert process.wait(20) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_it_shows_the_hosts_until_q(desk: Desk) -> None:
    with watching(desk) as watch:
        assert "\x1b[?1049h" in watch.until(r"1 down[\s\S]*sandbox[\s\S]*nothing was done")
        again = watch.until(r"every 0\.5 s")
        assert "HOST" not in again  # what did not change is not sent again
        watch.press("q")
        watch.until(r"\x1b\[\?1049l")


def test_ctrl_c_ends_it_as_q_does(desk: Desk) -> None:
    with watching(desk) as watch:
        watch.until(r"1 down")
        watch.process.send_signal(2)
        watch.until(r"\x1b\[\?1049l")
