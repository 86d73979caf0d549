"""`status --watch` on a terminal: hosts asked again and again over the same connections, and keys that open what tells more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sparkwright.app.connect import Chosen
from sparkwright.app.questions import fan_out, fleet_status
from sparkwright.console.watch import frame
from sparkwright.console.watch.frame import Act, Traffic, View
from sparkwright.console.watch.screen import Screen
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member, hang_up
from sparkwright.health.record import checked
from sparkwright.protocol.events import Event

#: what a key opens for the marked host, as words after the program's name
OPENS = {"l": ("logs", "--tail", "300", "--host"), "d": ("diagnose", "--host"), "h": ("history", "--host")}
PAGER = ("less", "-R")
WORKERS = 1  # one question at a time to a host: its connection carries one


def watch(chosen: Chosen, *, every_s: float) -> int:
    """Show the hosts until q or Ctrl-C. Returns 0."""
    try:
        with Screen() as screen, ThreadPoolExecutor(WORKERS) as pool:
            _Watch(chosen, every_s, screen, pool).run()
    except KeyboardInterrupt:
        pass
    finally:
        hang_up(chosen.fleet.members)
    return Exit.OK


class _Watch:
    """What is known, and what was asked for and has not come."""

    def __init__(self, chosen: Chosen, every_s: float, screen: Screen, pool: ThreadPoolExecutor) -> None:
        self._chosen, self._screen, self._pool = chosen, screen, pool
        self._wanted, self._gateways = fleet_status.pinned(chosen), fleet_status.carried(chosen)
        self._view = View(every_s=every_s)
        self._rates = Rates()
        self._waiting: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()
        self._next_s = 0.0

    def run(self) -> None:
        """Until q."""
        while True:
            self._take()
            if time.monotonic() >= self._next_s and not self._view.asking:
                self._ask()
            self._screen.paint(frame.lines(self._view, *self._screen.size))
            key = self._screen.wait(60.0 if self._view.asking else self._next_s - time.monotonic())
            if key == "q":
                return
            self._act(key)

    def _ask(self) -> None:
        self._view = replace(self._view, asking=True)
        self._next_s = time.monotonic() + self._view.every_s
        self._submit(self._rows, self._show)

    def _submit(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        future = self._pool.submit(job)
        self._waiting.append((future, then))
        future.add_done_callback(lambda done: self._screen.wake())

    def _take(self) -> None:
        while self._waiting and self._waiting[0][0].done():
            future, then = self._waiting.popleft()
            then(future.result())

    def _rows(self) -> list[fan_out.Answer]:
        members = self._chosen.fleet.members

        def header(member: Member) -> dict[str, Any]:
            return {**fleet_status.header(member, self._wanted, self._gateways), "traffic": True}

        return fan_out.everyone(members, header, "status")

    def _show(self, answers: list[fan_out.Answer]) -> None:
        members, now_s = self._chosen.fleet.members, time.monotonic()
        rows = [fleet_status.row(*pair, self._wanted, self._gateways) for pair in zip(members, answers, strict=True)]
        traffic = {
            member.host.name: self._rates.of(member.host.name, answer, now_s)
            for member, answer in zip(members, answers, strict=True)
            if not isinstance(answer, SparkwrightError)
        }
        at = time.strftime("%H:%M:%S")
        self._view = replace(self._view, rows=rows, traffic=traffic, at=at, asking=False)
        self._want_acts(anew=True)

    def _want_acts(self, *, anew: bool = False) -> None:
        """The history of the marked host: asked for when it is marked, and again with each round."""
        host = self._view.host
        if not host or (host in self._view.acts and not anew):
            return
        member = next(one for one in self._chosen.fleet.members if one.host.name == host)

        def came(found: tuple[Act, ...] | None) -> None:
            if found is not None:
                self._view = replace(self._view, acts={**self._view.acts, host: found})

        self._submit(lambda: _acts(member), came)

    def _act(self, key: str) -> None:
        count = len(self._view.rows)
        if key in ("up", "down") and count:
            chosen = (self._view.chosen + (1 if key == "down" else -1)) % count
            self._view = replace(self._view, chosen=chosen)
            self._want_acts()
        elif key == "r":
            self._next_s = 0.0
        elif key in OPENS and self._view.host:
            self._open(OPENS[key])

    def _open(self, words: tuple[str, ...]) -> None:
        """A command of ours, for the marked host, through the user's pager; the screen comes back after it."""
        self._screen.__exit__()
        try:
            _page([sys.argv[0], *words, self._view.host])
        finally:
            self._screen.__enter__()


class Rates:
    """Tokens per second of all streams, from one look at a server's counter to the next."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def of(self, host: str, answer: Mapping[str, Any], now_s: float) -> Traffic:
        """What a `status` event says of the traffic. A counter that went back is another server's: no rate then."""
        counts = answer.get("traffic") or {}
        total, before = counts.get("generated"), self._last.pop(host, None)
        if total is not None:
            self._last[host] = (now_s, total)
        rate = None
        if total is not None and before is not None and total >= before[1] and now_s > before[0]:
            rate = (total - before[1]) / (now_s - before[0])
        return Traffic(counts.get("running"), counts.get("waiting"), rate, _temperature_c(answer))


def _temperature_c(answer: Mapping[str, Any]) -> float | None:
    """Of the GPU at the last check."""
    try:
        return checked(answer["record"]).gpu.temperature_c
    except ValueError:
        return None


def _acts(member: Member) -> tuple[Act, ...] | None:
    """The last acts on a host, newest first; None where it can't be asked: its row says why."""
    try:
        events = [one for one in member.request({"verb": "history"}) if one["event"] == "history"]
    except SparkwrightError:
        hang_up([member])
        member.link = None
        return None
    return tuple(Act(one["at"], _act_line(one)) for one in events[: frame.ACTS])


def _act_line(row: Event) -> str:
    why = f": {row['why']}" if row.get("why") else ""
    return f"{row['what']}  by {row.get('who') or 'unknown'}{why}"


def _page(command: list[str]) -> None:
    """A command's output in a pager: PAGER's, else less; without one on the terminal, until Enter."""
    pager = os.environ.get("PAGER", "").split() or list(PAGER)
    if shutil.which(pager[0]) is None:
        subprocess.run(command, check=False)
        input("Enter to return ")
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        subprocess.run(pager, stdin=running.stdout, check=False)
        running.terminate()
