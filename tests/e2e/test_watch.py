"""`status --watch` in a real terminal: keys, and the terminal as it was afterwards."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from tests.e2e.conftest import SandboxProject

PROGRAM = "from sparkwright.cli import main; main()"
#: prints what a command is asked for, as a pager would show it
PAGER = "cat"


class WatchedTerminal:
    """A program in a terminal of 24 lines and 80 columns."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self.terminal, self.seen = process, terminal, ""
        self.before: list[Any] = []
        self._ready = select.poll()
        self._ready.register(terminal, select.POLLIN)

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def until(self, pattern: str, timeout_s: float = 60) -> str:
        """Read until the screen has shown it, since the last call."""
        deadline_s, text = time.monotonic() + timeout_s, ""
        while not re.search(pattern, text):
            assert time.monotonic() < deadline_s, text
            if self._ready.poll(200):  # select() refuses the descriptors of a process that has many open
                text += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen += text
        return text


@contextmanager
def watch_status(
    project: SandboxProject, *, hosts: str = "sandbox", term: str = "xterm-256color"
) -> Iterator[WatchedTerminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "TERM": term, "PAGER": PAGER}
    command = ["status", "--host", hosts, "--watch", "--every", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=project.root,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    try:
        watched = WatchedTerminal(process, ours)
        watched.before = before
        yield watched
        assert process.wait(20) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_it_shows_the_hosts_until_q(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        assert "\x1b[?1049h" in watch.until(r"1 down[\s\S]*sandbox[\s\S]*°C[\s\S]*nothing was done")
        again = watch.until(r"every 0\.5 s")
        assert "HOST" not in again  # what did not change is not sent again
        watch.press("q")
        watch.until(r"\x1b\[\?1049l")


def test_ctrl_c_ends_it_as_q_does(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.process.send_signal(2)
        watch.until(r"\x1b\[\?1049l")


def test_a_host_that_hangs_delays_no_other(project: SandboxProject) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (project.root / "hosts/hung.yml").write_text(f"address: 127.0.0.1\nport: {silent.getsockname()[1]}\n")
        with watch_status(project, hosts="hung,sandbox") as watch:
            shown = watch.until(r"1 down")
            assert "unreachable" not in watch.seen and "1 asking" in shown
            watch.press("jr")
            watch.until(r">  \S*sandbox")
            watch.press("q")
            watch.until(r"\x1b\[\?1049l")


def test_ctrl_z_gives_the_terminal_back_and_fg_the_screen(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.process.send_signal(signal.SIGTSTP)
        watch.until(r"\x1b\[\?1049l")
        deadline_s = time.monotonic() + 30
        while psutil.Process(watch.process.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline_s
        assert termios.tcgetattr(watch.terminal) == watch.before
        watch.process.send_signal(signal.SIGCONT)
        watch.until(r"\x1b\[\?1049h[\s\S]*HOST")
        watch.press("q")
        watch.until(r"\x1b\[\?1049l")


def test_another_size_is_painted_whole(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        fcntl.ioctl(watch.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        watch.process.send_signal(signal.SIGWINCH)
        watch.until(r"HOST[\s\S]*sandbox[\s\S]*quit")
        watch.press("q")
        watch.until(r"\x1b\[\?1049l")


def test_a_terminal_that_cannot_be_painted_on_gets_the_table_again_and_again(project: SandboxProject) -> None:
    with watch_status(project, term="dumb") as watch:
        shown = watch.until(r"HOST[\s\S]*HOST")
        assert "\x1b[?1049h" not in shown
        watch.process.send_signal(signal.SIGINT)


def test_a_pager_is_told_what_it_shows(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.press("h")
        watch.until(r"\$ \S+ history --host sandbox[\s\S]*nothing was done[\s\S]*\x1b\[\?1049h")
        watch.press("q")
        watch.until(r"\x1b\[\?1049l")
