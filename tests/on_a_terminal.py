"""A command on a pseudo-terminal, with its keyboard input and its screen."""

import contextlib
import os
import pty
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

PROGRAM = "from sparkwright.cli import main; main()"
#: cursor movements of Rich's live display, and other text
_MOVES = re.compile(r"\x1b\[(\d*)([AK])|\x1b\[\?25[hl]|\r?(\n)|\r|((?:[^\x1b\r\n]|\x1b\[[0-9;]*m)+)")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


def final_lines(text: str) -> list[str]:
    """Return the lines that a terminal shows at the end, with colours. A line is erased before it is written again."""
    lines, row = [""], 0
    for count, move, newline, words in _MOVES.findall(text):
        if move == "A":
            row = max(0, row - int(count or 1))
        elif move == "K":
            lines[row] = ""
        elif newline:
            row += 1
            lines += [""] * (row == len(lines))
        lines[row] += words
    while lines and not lines[-1]:
        lines.pop()
    return lines


class Screen:
    """A terminal on which a command runs."""

    def __init__(self, pid: int, master: int) -> None:
        self._pid, self._master = pid, master
        self._raw = b""
        self._read_to = 0

    @property
    def seen(self) -> str:
        """Everything that was printed, without escapes."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    @property
    def lines(self) -> list[str]:
        """The lines that the terminal shows now, without colours."""
        return [_ESCAPES.sub("", line).rstrip() for line in final_lines(self._raw.decode(errors="replace"))]

    def wait_for(self, text: str, timeout_s: float = 60) -> str:
        """Read until the text appears after that of the previous call. Return the text between them."""
        until_s = time.monotonic() + timeout_s
        while (at := self.seen.find(text, self._read_to)) < 0:
            if not self._read_more(until_s):
                raise AssertionError(f"{text!r} did not appear. Output:\n{self.seen}")
        between, self._read_to = self.seen[self._read_to : at], at + len(text)
        return between

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, repeatedly if needed: a read that is about to begin misses it."""
        for _ in range(20):
            self.type("\x03")
            if select.select([self._master], [], [], 0.5)[0] and b"interrupted" in self._after_echo():
                return

    def _after_echo(self) -> bytes:
        with contextlib.suppress(AssertionError):
            while b"interrupted" not in self._raw and self._read_more(time.monotonic() + 1):
                pass
        return self._raw

    def wait_for_exit(self, timeout_s: float = 60) -> int:
        until_s = time.monotonic() + timeout_s
        while self._read_more(until_s):
            pass
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._master)

    def _read_more(self, until_s: float) -> bool:
        """Read once. Return False at the end of the output."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise AssertionError(f"no more output in time:\n{self.seen}")
        try:
            data = os.read(self._master, 65536)
        except OSError:  # on Linux, if the other end is closed
            return False
        self._raw += data
        return bool(data)


@contextmanager
def open_screen(
    *words: str, cwd: Path, env: Mapping[str, str] | None = None, program: str = PROGRAM, columns: int = 120
) -> Iterator[Screen]:
    """Run a command on a terminal of 40 lines for the block."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(
            sys.executable, [sys.executable, "-c", program, *words], {**os.environ, "TERM": "xterm", **(env or {})}
        )
    ioctl(master, TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    terminal = Screen(pid, master)
    try:
        yield terminal
    finally:
        terminal.close()
