"""`status --watch` on a terminal: query the hosts repeatedly over the same connections, with keys that open details."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from queue import SimpleQueue
from typing import IO, Any

from sparkwright import here, program, units
from sparkwright.app.connect import Selection
from sparkwright.app.questions import fleet_status, host_requests
from sparkwright.console import watch as screen
from sparkwright.console.rows import Row
from sparkwright.console.watch import Act, Screen, Traffic, View, possible
from sparkwright.defaults import FORKS
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member, hang_up
from sparkwright.health.record import checked
from sparkwright.protocol.events import Event
from sparkwright.shell import join

__all__ = ["possible", "watch"]

#: command that each key runs for the selected host
OPENS = {"l": ("logs", "--tail", "300", "--host"), "d": ("diagnose", "--host"), "h": ("history", "--host")}
PAGER = ("less", "-R")
#: how long to collect a round's answers before showing them, in seconds; later ones are shown as they arrive
SETTLE_S = 0.4
#: how long a request may be open before the host's state is unknown, in seconds; at least two rounds
SILENT_S = 5.0


def watch(selection: Selection, *, every_s: float) -> int:
    """Show the hosts until q or Ctrl-C. Return 0."""
    pool = ThreadPoolExecutor(min(FORKS, len(selection.fleet.members)) + 1)
    try:
        with Screen() as screen:
            _Watch(selection, every_s, screen, pool).run()
    except KeyboardInterrupt:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # don't wait for hosts that are off
        hang_up(selection.fleet.members)
    return Exit.OK


class _Watch:
    """The screen of `status --watch`, with the hosts' last answers and the open requests.

    Each host is queried independently, so that a slow host does not delay the others.
    """

    def __init__(self, selection: Selection, every_s: float, screen: Screen, pool: ThreadPoolExecutor) -> None:
        self._chosen, self._screen, self._pool = selection, screen, pool
        self._wanted, self._gateways = fleet_status.pinned(selection), fleet_status.carried(selection)
        self._rows = {host.name: Row(host.name, "asking", recipe=host.recipe or "") for host in selection.hosts}
        self._view = View(rows=list(self._rows.values()), every_s=every_s)
        self._rates = Rates()
        #: a lock per host, because a connection carries one request at a time
        self._busy = {host.name: threading.Lock() for host in selection.hosts}
        self._asked_s: dict[str, float] = {}
        self._came: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._round_s = self._next_s = 0.0

    def run(self) -> None:
        """Run until q is pressed."""
        key = ""
        while key != "q":
            self._take()
            if time.monotonic() >= self._next_s:
                self._ask()
            settles_s = self._round_s + SETTLE_S - time.monotonic() if self._asked_s else 0.0
            if key or settles_s <= 0:
                self._view = replace(self._view, rows=self._now())
                self._screen.paint(screen.lines(self._view, *self._screen.size))
            until_s = self._next_s - time.monotonic()
            key = self._screen.wait(min(until_s, settles_s) if settles_s > 0 else until_s)
            self._act(key)

    def _ask(self) -> None:
        """Query every host that has no open request."""
        self._round_s = time.monotonic()
        self._next_s = self._round_s + self._view.every_s
        for member in self._chosen.fleet.members:
            if member.host.name not in self._asked_s:
                self._asked_s[member.host.name] = self._round_s
                self._submit(member, partial(self._question, member))

    def _submit(self, member: Member, question: Callable[[], Callable[[], None]]) -> None:
        def job() -> None:
            with self._busy[member.host.name]:
                self._came.put(question())
            self._screen.wake()

        self._pool.submit(here.carried(job))

    def _take(self) -> None:
        while not self._came.empty():
            self._came.get()()

    def _question(self, member: Member) -> Callable[[], None]:
        header = {**fleet_status.header(member, self._wanted, self._gateways), "traffic": True}
        answer = host_requests.one(member, header, "status")
        return partial(self._show, member, answer, time.time(), time.monotonic())

    def _show(self, member: Member, answer: host_requests.Answer, came_s: float, now_s: float) -> None:
        """Show a host's answer.

        Args:
            came_s: time of the answer, in seconds since the epoch.
            now_s: the same on the monotonic clock. The answer may be shown much later, after a pager was closed.
        """
        name, traffic = member.host.name, dict(self._view.traffic)
        self._asked_s.pop(name, None)
        self._rows[name] = fleet_status.row(member, answer, self._wanted, self._gateways)
        traffic.pop(name, None)
        if not isinstance(answer, SparkwrightError):
            traffic[name] = self._rates.of(name, answer, now_s)
        self._view = replace(self._view, traffic=traffic, at=units.moment(came_s, "%H:%M:%S"))
        if name == self._view.host:
            self._want_acts(anew=True)

    def _now(self) -> list[Row]:
        """Return the rows. Hosts that have not answered for a while are unknown."""
        now_s, limit_s = time.monotonic(), max(SILENT_S, 2 * self._view.every_s)
        silent_s = {name: now_s - asked_s for name, asked_s in self._asked_s.items() if now_s - asked_s > limit_s}
        return [
            replace(row, state="unknown", why=f"no answer for {units.age(silent_s[name])}; it was {row.state} before")
            if name in silent_s and row.state not in ("asking", "unreachable")
            else row
            for name, row in self._rows.items()
        ]

    def _want_acts(self, *, anew: bool = False) -> None:
        """Request the history of the selected host, both when it is selected and after each of its answers."""
        host = self._view.host
        if host in self._asked_s or (host in self._view.acts and not anew):
            return  # its pending answer requests the history again
        member = next(member for member in self._chosen.fleet.members if member.host.name == host)
        if member.link is not None:
            self._submit(member, partial(self._history, member))

    def _history(self, member: Member) -> Callable[[], None]:
        found = _acts(member)

        def came() -> None:
            if found is not None:
                self._view = replace(self._view, acts={**self._view.acts, member.host.name: found})

        return came

    def _act(self, key: str) -> None:
        if key in ("up", "down"):
            row = (self._view.chosen + (1 if key == "down" else -1)) % len(self._view.rows)
            self._view = replace(self._view, chosen=row)
            self._want_acts()
        elif key == "r":
            self._next_s = 0.0
        elif key in OPENS:
            self._open(OPENS[key])

    def _open(self, argv: tuple[str, ...]) -> None:
        """Show a command for the selected host in the user's pager, then return to the screen."""
        self._screen.__exit__()
        try:
            _page([*argv, self._view.host], {**os.environ, "COLUMNS": str(self._screen.size[0])})
        finally:
            self._screen.__enter__()


class Rates:
    """Tokens per second of all streams, computed from two readings of a server's counter."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def of(self, host: str, answer: Mapping[str, Any], now_s: float) -> Traffic:
        """Return the traffic in a `status` event.

        A counter that went backwards belongs to another server, so there is no rate.
        """
        counts = answer.get("traffic") or {}
        total, before = counts.get("generated"), self._last.pop(host, None)
        if total is not None:
            self._last[host] = (now_s, total)
        rate = None
        if total is not None and before is not None and total >= before[1] and now_s > before[0]:
            rate = (total - before[1]) / (now_s - before[0])
        now_c = counts.get("temperature_c")
        return Traffic(
            counts.get("running"), counts.get("waiting"), rate, _checked_c(answer) if now_c is None else now_c
        )


def _checked_c(answer: Mapping[str, Any]) -> float | None:
    """Return the temperature of the GPU at the last check."""
    try:
        return checked(answer["record"]).gpu.temperature_c
    except ValueError:
        return None


def _acts(member: Member) -> tuple[Act, ...] | None:
    """Return a host's last history entries, newest first; None if it can't be queried, for which its row shows the reason."""
    try:
        events = [row for row in member.request({"verb": "history"}) if row["event"] == "history"]
    except Exception:  # the connection failed, or was closed on exit
        hang_up([member])
        member.link = None
        return None
    return tuple(Act(event["at"], _act_line(event)) for event in events[: screen.ACTS])


def _act_line(row: Event) -> str:
    why = f": {row['why']}" if row.get("why") else ""
    return f"{row['what']}  by {row.get('who') or 'unknown'}{why}"


def _page(argv: list[str], env: Mapping[str, str]) -> None:
    """Show a command's output in a pager: $PAGER or less. Without a pager, print it and wait for Enter.

    Args:
        argv: the command's arguments.
    """
    command = [sys.executable, "-c", "from sparkwright.cli import main; main()", *argv]
    pager = os.environ.get("PAGER", "").split() or list(PAGER)
    if shutil.which(pager[0]) is None:
        subprocess.run(command, env=env, check=False)
        input("Enter to return ")
        return
    if argv[0] == "logs" and PurePath(pager[0]).name == "less":
        pager.append("+G")  # the newest lines are at the end
    at_ctrl_c = signal.signal(signal.SIGINT, lambda *_: None)  # the pager and the command handle it
    try:
        with (
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running,
            subprocess.Popen(pager, stdin=subprocess.PIPE, bufsize=0) as shown,
        ):
            title = f"$ {program.name()} {join(argv)}\n\n".encode()
            threading.Thread(target=_pump, args=(title, running.stdout, shown.stdin), daemon=True).start()
            shown.wait()
            running.terminate()
    finally:
        signal.signal(signal.SIGINT, at_ctrl_c)


def _pump(title: bytes, source: IO[bytes], pager: IO[bytes]) -> None:
    """Copy a command's output to the pager as it arrives. The pager may exit early."""
    with contextlib.suppress(BrokenPipeError, ValueError), pager:
        pager.write(title)
        for line in source:
            pager.write(line)
