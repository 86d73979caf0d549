"""`status --watch` on a terminal: its keys, and that it restores the terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import SandboxProject
from tests.waiting import wait_until

LEAVE_SCREEN = r"\x1b\[\?1049l"


class WatchedTerminal:
    """A program in a terminal of 24 lines and 80 columns. before: the terminal's settings at the start."""

    def __init__(self, process: subprocess.Popen[str], terminal: int, before: list[Any]) -> None:
        self.process, self.terminal, self.before, self.seen = process, terminal, before, ""
        self._ready = select.poll()
        self._ready.register(terminal, select.POLLIN)

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def until(self, pattern: str, timeout_s: float = 60) -> str:
        """Read until the pattern is shown, and return the text since the last call."""
        deadline_s, text = time.monotonic() + timeout_s, ""
        while not re.search(pattern, text):
            assert time.monotonic() < deadline_s, text
            if self._ready.poll(200):  # select() refuses the descriptors of a process that has many open
                text += os.read(self.terminal, 65536).decode(errors="replace")
        self.seen += text
        return text

    def quit(self) -> None:
        self.press("q")
        self.until(LEAVE_SCREEN)


@contextmanager
def watch_status(
    project: SandboxProject, *, hosts: str = "sandbox", term: str = "xterm-256color"
) -> Iterator[WatchedTerminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    command = ("status", "--host", hosts, "--watch", "--every", "0.5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", term)
        patch.setenv("PAGER", "cat")
        process = project.start(*command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    try:
        yield WatchedTerminal(process, ours, before)
        assert process.wait(20) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_watch_shows_the_hosts_until_q_is_pressed(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        assert "\x1b[?1049h" in watch.until(r"1 down[\s\S]*sandbox[\s\S]*°C[\s\S]*nothing has been done")
        again = watch.until(r"every 0\.5 s")
        assert "HOST" not in again  # only changes are sent
        watch.quit()


def test_ctrl_c_ends_watch(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.process.send_signal(signal.SIGINT)
        watch.until(LEAVE_SCREEN)


def test_a_hanging_host_does_not_delay_the_others(project: SandboxProject) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (project.root / "hosts/hung.yml").write_text(f"address: 127.0.0.1\nport: {silent.getsockname()[1]}\n")
        with watch_status(project, hosts="hung,sandbox") as watch:
            shown = watch.until(r"1 down")
            assert "unreachable" not in watch.seen and "1 asking" in shown
            watch.press("jr")
            watch.until(r">  \S*sandbox")
            watch.quit()


def test_ctrl_z_restores_the_terminal_and_fg_the_screen(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.process.send_signal(signal.SIGTSTP)
        watch.until(LEAVE_SCREEN)
        wait_until(lambda: psutil.Process(watch.process.pid).status() == psutil.STATUS_STOPPED, "its stop")
        assert termios.tcgetattr(watch.terminal) == watch.before
        watch.process.send_signal(signal.SIGCONT)
        watch.until(r"\x1b\[\?1049h[\s\S]*HOST")
        watch.quit()


def test_a_resized_terminal_is_painted_completely(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        fcntl.ioctl(watch.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        watch.process.send_signal(signal.SIGWINCH)
        watch.until(r"HOST[\s\S]*sandbox[\s\S]*quit")
        watch.quit()


def test_a_dumb_terminal_gets_the_table_again_and_again(project: SandboxProject) -> None:
    with watch_status(project, term="dumb") as watch:
        shown = watch.until(r"HOST[\s\S]*HOST")
        assert "\x1b[?1049h" not in shown
        watch.process.send_signal(signal.SIGINT)


def test_a_pager_shows_the_command_before_its_output(project: SandboxProject) -> None:
    with watch_status(project) as watch:
        watch.until(r"1 down")
        watch.press("h")
        watch.until(r"\$ \S+ history --host sandbox[\s\S]*no history yet[\s\S]*\x1b\[\?1049h")
        watch.quit()
