"""`status --watch` on a terminal: a screen that is refreshed as the hosts answer, with keys that open details."""

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
from sparkwright.app.queries import fleet_status, host_requests
from sparkwright.console import watch as screen
from sparkwright.console.rows import HostStatus
from sparkwright.console.watch import HistoryEntry, Screen, Traffic, View, is_supported
from sparkwright.defaults import FORKS
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member, close_links
from sparkwright.health.record import parse_foreign_record
from sparkwright.protocol.events import Event
from sparkwright.shell import join

__all__ = ["is_supported", "watch"]

#: arguments of the command that each key runs; the name of the selected host is added
KEY_COMMANDS = {"l": ("logs", "--tail", "300", "--host"), "d": ("diagnose", "--host"), "h": ("history", "--host")}
DEFAULT_PAGER = ("less", "-R")
#: seconds for which a round's answers are collected before a refresh; later answers are shown as they arrive
SETTLE_TIME_S = 0.4
#: time after which the state of a host without an answer is unknown, in seconds; at least two refresh intervals
SILENCE_LIMIT_S = 5.0


def watch(selection: Selection, *, interval_s: float) -> int:
    """Show the hosts until the user presses q or Ctrl-C."""
    pool = ThreadPoolExecutor(min(FORKS, len(selection.fleet.members)) + 1)
    try:
        with Screen() as screen:
            _Watch(selection, interval_s, screen, pool).run()
    except KeyboardInterrupt:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a connection to a host that is off may take long to fail
        close_links(selection.fleet.members)
    return Exit.OK


class _Watch:
    """The state of `status --watch`: the last answers and the pending requests.

    Hosts are queried independently, so that a slow host does not delay the others.
    """

    def __init__(self, selection: Selection, interval_s: float, screen: Screen, pool: ThreadPoolExecutor) -> None:
        self._members, self._screen, self._pool = selection.fleet.members, screen, pool
        self._intended_by_host = fleet_status.intended_servers(selection)
        self._gateways = fleet_status.gateways_by_row(selection)
        self._rows = {host.name: HostStatus(host.name, "asking", recipe=host.recipe or "") for host in selection.hosts}
        self._view = View(rows=list(self._rows.values()), interval_s=interval_s)
        self._token_rates = TokenRates()
        #: a lock per host, because a connection carries one request at a time
        self._connection_locks = {host.name: threading.Lock() for host in selection.hosts}
        #: monotonic time of each host's pending request
        self._requested_s: dict[str, float] = {}
        #: changes to this object, queued by the request threads and made by the main thread
        self._updates: SimpleQueue[Callable[[], None]] = SimpleQueue()
        #: monotonic times of the last and the next round of requests
        self._last_round_s = self._next_round_s = 0.0

    def run(self) -> None:
        key = ""
        while key != "q":
            while not self._updates.empty():
                self._updates.get()()
            if time.monotonic() >= self._next_round_s:
                self._query_due_hosts()
            settle_time_s = self._last_round_s + SETTLE_TIME_S - time.monotonic() if self._requested_s else 0.0
            if key or settle_time_s <= 0:
                self._view = replace(self._view, rows=self._current_rows())
                self._screen.paint(screen.screen_lines(self._view, *self._screen.size))
            round_wait_s = self._next_round_s - time.monotonic()
            key = self._screen.wait(min(round_wait_s, settle_time_s) if settle_time_s > 0 else round_wait_s)
            self._handle_key(key)

    def _query_due_hosts(self) -> None:
        """Query every host that has no pending request."""
        self._last_round_s = time.monotonic()
        self._next_round_s = self._last_round_s + self._view.interval_s
        for member in self._members:
            if member.host.name not in self._requested_s:
                self._requested_s[member.host.name] = self._last_round_s
                self._submit_request(member, self._query_status)

    def _submit_request(self, member: Member, request: Callable[[Member], Callable[[], None]]) -> None:
        """Call `request` in a thread, and queue the update that it returns."""

        def job() -> None:
            with self._connection_locks[member.host.name]:
                self._updates.put(request(member))
            self._screen.wake()

        self._pool.submit(here.bind_folder(job))

    def _query_status(self, member: Member) -> Callable[[], None]:
        header = {**fleet_status.status_request(member, self._intended_by_host, self._gateways), "traffic": True}
        answer = host_requests.query_member(member, header, "status")
        return partial(self._show_answer, member, answer, time.time(), time.monotonic())

    def _show_answer(
        self, member: Member, answer: host_requests.Answer, answered_s: float, answered_monotonic_s: float
    ) -> None:
        """Show a host's answer. It may have arrived long before, while a pager was open.

        Args:
            answered_s: when it arrived, in seconds since the epoch.
            answered_monotonic_s: the same on the monotonic clock.
        """
        name, traffic = member.host.name, dict(self._view.traffic)
        self._requested_s.pop(name, None)
        self._rows[name] = fleet_status.build_row(member, answer, self._intended_by_host, self._gateways)
        traffic.pop(name, None)
        if not isinstance(answer, SparkwrightError):
            traffic[name] = self._token_rates.update(name, answer, answered_monotonic_s)
        self._view = replace(self._view, traffic=traffic, answered_at=units.format_time(answered_s, "%H:%M:%S"))
        if name == self._view.host:
            self._request_history(refresh=True)

    def _current_rows(self) -> list[HostStatus]:
        """Return the rows, with the state `unknown` for hosts whose answer is overdue."""
        now_s, limit_s = time.monotonic(), max(SILENCE_LIMIT_S, 2 * self._view.interval_s)

        def current_row(row: HostStatus) -> HostStatus:
            silence_s = now_s - self._requested_s.get(row.host, now_s)
            if silence_s <= limit_s or row.state in ("asking", "unreachable"):
                return row
            reason = f"no answer for {units.format_age(silence_s)}; it was {row.state} before"
            return replace(row, state="unknown", why=reason)

        return list(map(current_row, self._rows.values()))

    def _request_history(self, *, refresh: bool = False) -> None:
        """Request the history of the selected host if it is not shown yet, or again with `refresh`."""
        host = self._view.host
        if host in self._requested_s or (host in self._view.history and not refresh):
            return  # its pending answer requests the history again
        member = next(member for member in self._members if member.host.name == host)
        if member.link is not None:
            self._submit_request(member, self._query_history)

    def _query_history(self, member: Member) -> Callable[[], None]:
        entries = _query_history_entries(member)

        def show_history() -> None:
            if entries is not None:
                self._view = replace(self._view, history={**self._view.history, member.host.name: entries})

        return show_history

    def _handle_key(self, key: str) -> None:
        if key in ("up", "down"):
            selected_index = (self._view.selected_index + (1 if key == "down" else -1)) % len(self._view.rows)
            self._view = replace(self._view, selected_index=selected_index)
            self._request_history()
        elif key == "r":
            self._next_round_s = 0.0
        elif key in KEY_COMMANDS:
            self._run_in_pager(KEY_COMMANDS[key])

    def _run_in_pager(self, argv: tuple[str, ...]) -> None:
        """Show the output of a command for the selected host in the user's pager, then return to the screen."""
        self._screen.__exit__()
        try:
            _open_pager([*argv, self._view.host], {**os.environ, "COLUMNS": str(self._screen.size[0])})
        finally:
            self._screen.__enter__()


class TokenRates:
    """The hosts' rates in tokens per second, computed from successive readings of their token counters."""

    def __init__(self) -> None:
        #: time and value of each host's last reading
        self._last_readings: dict[str, tuple[float, float]] = {}

    def update(self, host: str, answer: Mapping[str, Any], now_s: float) -> Traffic:
        """Return the traffic in a `status` event.

        The rate is None for a host's first reading, and after the counter has gone backwards because the server was replaced.
        """
        counts = answer.get("traffic") or {}
        generated_tokens, last_reading = counts.get("generated"), self._last_readings.pop(host, None)
        if generated_tokens is not None:
            self._last_readings[host] = (now_s, generated_tokens)
        rate = None
        if (
            generated_tokens is not None
            and last_reading is not None
            and generated_tokens >= last_reading[1]
            and now_s > last_reading[0]
        ):
            rate = (generated_tokens - last_reading[1]) / (now_s - last_reading[0])
        temperature_c = counts.get("temperature_c")
        if temperature_c is None:
            temperature_c = _last_checked_temperature(answer)
        return Traffic(counts.get("running"), counts.get("waiting"), rate, temperature_c)


def _last_checked_temperature(answer: Mapping[str, Any]) -> float | None:
    try:
        return parse_foreign_record(answer["record"]).gpu.temperature_c
    except ValueError:
        return None


def _query_history_entries(member: Member) -> tuple[HistoryEntry, ...] | None:
    """Return a host's last history entries, newest first; None if the request fails, which the host's row then shows."""
    try:
        events = [row for row in member.request({"verb": "history"}) if row["event"] == "history"]
    except Exception:  # the connection failed, or was closed on exit
        close_links([member])
        member.link = None
        return None
    return tuple(HistoryEntry(event["at"], _format_entry(event)) for event in events[: screen.MAX_HISTORY_LINES])


def _format_entry(event: Event) -> str:
    why = f": {event['why']}" if event.get("why") else ""
    return f"{event['what']}  by {event.get('who') or 'unknown'}{why}"


def _open_pager(argv: list[str], env: Mapping[str, str]) -> None:
    """Show the output of a sparkwright command in $PAGER or less. Without a pager, print it and wait for Enter."""
    command = [sys.executable, "-c", "from sparkwright.cli import main; main()", *argv]
    pager = os.environ.get("PAGER", "").split() or list(DEFAULT_PAGER)
    if shutil.which(pager[0]) is None:
        subprocess.run(command, env=env, check=False)
        input("Press Enter to return. ")
        return
    if argv[0] == "logs" and PurePath(pager[0]).name == "less":
        pager.append("+G")  # the newest lines are at the end
    previous_handler = signal.signal(signal.SIGINT, lambda *_: None)  # the pager and the command handle it
    try:
        with (
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as command_process,
            subprocess.Popen(pager, stdin=subprocess.PIPE, bufsize=0) as pager_process,
        ):
            title = f"$ {program.name()} {join(argv)}\n\n".encode()
            threading.Thread(
                target=_copy_output, args=(title, command_process.stdout, pager_process.stdin), daemon=True
            ).start()
            pager_process.wait()
            command_process.terminate()
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def _copy_output(title: bytes, source: IO[bytes], pager: IO[bytes]) -> None:
    """Copy a command's output to the pager as it arrives, until either of them exits."""
    with contextlib.suppress(BrokenPipeError, ValueError), pager:
        pager.write(title)
        for line in source:
            pager.write(line)
