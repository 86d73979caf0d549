"""The terminal of `status --watch`: the alternate screen, painting of changed lines only, and reading of keys.

A window of 80 by 24 is 2 KB. An unchanged line is not sent again, for the sake of slow connections to a remote laptop.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.control import Control
from rich.text import Text

from sparkwright.console.terminal import terminal

#: terminals that cannot move their cursor
NO_SCREEN = ("", "dumb", "unknown")
ESCAPE = "\x1b"
#: names of the keys by the bytes that a terminal sends
KEYS = {f"{ESCAPE}[A": "up", f"{ESCAPE}[B": "down", f"{ESCAPE}OA": "up", f"{ESCAPE}OB": "down", "k": "up", "j": "down"}
#: how long to wait for the rest of a key after an escape, in seconds
REST_S = 0.05
ERASE_REST, CLEAR = f"{ESCAPE}[K", f"{ESCAPE}[2J"


def possible() -> bool:
    """Return True if standard input and output are a terminal that can be painted on."""
    painted = os.environ.get("TERM", "") not in NO_SCREEN
    return painted and sys.stdin.isatty() and sys.stdout.isatty()


class Screen:
    """A context manager for the terminal on standard input and output, which is restored at the end.

    Any thread may end a `wait` with `wake`.
    """

    def __init__(self) -> None:
        self._console = terminal()
        self._painted: list[str] = []
        self._input = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._handlers: dict[signal.Signals, Any] = {}
        self._anew = False

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        mine = {signal.SIGWINCH: self._on_resize, signal.SIGTSTP: self._on_suspend}
        self._handlers = {number: signal.signal(number, handler) for number, handler in mine.items()}
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        return self

    def __exit__(self, *about: object) -> None:
        self._console.show_cursor(True)
        self._console.set_alt_screen(False)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._before is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
        self._painted = []

    @property
    def size(self) -> tuple[int, int]:
        """The present number of columns and lines."""
        return self._console.width, self._console.height

    def paint(self, lines: Sequence[Text]) -> None:
        """Show exactly these lines."""
        if self._anew:
            self._anew, self._painted = False, []
            self._console.file.write(CLEAR)
        found = [self._styled(line) for line in lines]
        for number in range(max(len(found), len(self._painted))):
            line = found[number] if number < len(found) else ""
            if number >= len(self._painted) or line != self._painted[number]:
                self._console.control(Control.move_to(0, number))
                self._console.file.write(f"{line}{ERASE_REST}")
        self._console.file.flush()
        self._painted = found

    def wait(self, timeout_s: float) -> str:
        """Return the name of the next key; empty after `wake`, a change of the window's size, or the timeout."""
        ready, _, _ = select.select([self._input, self._woken], [], [], max(0.0, timeout_s))
        if self._woken in ready:
            os.read(self._woken, 4096)
        return self._key() if self._input in ready else ""

    def wake(self) -> None:
        """End the current `wait`."""
        try:
            os.write(self._waker, b".")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def _key(self) -> str:
        found = os.read(self._input, 1).decode("ascii", "replace")
        while found[:1] == ESCAPE and len(found) < 3 and select.select([self._input], [], [], REST_S)[0]:
            found += os.read(self._input, 1).decode("ascii", "replace")
        return KEYS.get(found, found) or "q"  # end of input: the terminal is gone

    def _styled(self, line: Text) -> str:
        with self._console.capture() as shown:
            self._console.print(line, end="", soft_wrap=True)
        return shown.get()

    def _on_resize(self, number: int, frame: FrameType | None) -> None:
        self._anew = True
        self.wake()

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal for the shell, and show the screen again after `fg`."""
        self.__exit__()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.__enter__()
        self._on_resize(number, frame)
