"""A run that a program started: its events as they come, and its result. The hosts do the work, in runs of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from sparkwright import here
from sparkwright.api.results import Change, Event, HostResult, RunResult, TaskResult
from sparkwright.app.outcome import worst
from sparkwright.app.runs.presenters import Listener
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import broke
from sparkwright.protocol import events

#: keep-alive events
HIDDEN = ("alive",)
#: how long `close` waits for connections to close, in seconds
CLOSE_S = 10.0


class Run:
    """A run in progress. Iterate over it for its events, or call `result`; both wait for it.

    Leaving it early (`break`, `close`, Ctrl-C) closes the connections and leaves the hosts at work, as Ctrl-C in a terminal does
    by default. `sparkwright attach` follows them again. `stop` asks the hosts to stop at the next safe point instead.
    """

    def __init__(self, root: Path, begin: Callable[[Listener], Sequence[int]]) -> None:
        self._heard: queue.Queue[events.Event | None] = queue.Queue()
        self._listener = _Listener(self._heard)
        self._result: RunResult | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._act, args=(root, begin), daemon=True, name="sparkwright run")
        self._thread.start()

    def __iter__(self) -> Iterator[Event]:
        """Yield the events as they come. Raises at the end the error that `result` would raise."""
        ended = False
        try:
            while (event := self._heard.get()) is not None:
                yield _event(event)
            ended = True
        finally:
            if not ended:
                self.close()
        self._heard.put(None)  # another iteration ends at once
        if self._error is not None:
            raise self._error

    def result(self) -> RunResult:
        """Wait for the end and return the result. It includes hosts that failed; see `RunResult.check`.

        Raises Refused if no host was touched, Inconclusive for a run that was left, and other errors of the laptop.
        """
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Ask the hosts to stop at the next safe point, and return at once. The result tells how they ended."""
        self._listener.interrupt(stops=True)

    def close(self) -> None:
        """Close the connections. Hosts that are working continue."""
        if self._thread.is_alive():
            self._listener.interrupt(stops=False)
            self._thread.join(CLOSE_S)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _act(self, root: Path, begin: Callable[[Listener], Sequence[int]]) -> None:
        try:
            with here.opened(root):
                codes = begin(self._listener)
            self._result = self._listener.result(worst(codes))
        except SparkwrightError as error:
            self._error = error
        except Exception as error:
            self._error = broke(error)
            self._error.__cause__ = error
        finally:
            self._heard.put(None)


class _Listener:
    """Receives the events in the run's thread, collects the results, and passes the events on."""

    def __init__(self, events_queue: queue.Queue[events.Event | None]) -> None:
        self._passed_on = events_queue
        self._fleet: Fleet | None = None
        self._interrupted = self._stops = False
        self._lock = threading.Lock()
        self._tasks: list[TaskResult] = []
        self._hosts: dict[str, HostResult] = {}
        self._stopped = ""

    def follows(self, fleet: Fleet) -> None:
        fleet.ask_stop = lambda hosts: self._stops
        with self._lock:
            self._fleet = fleet
            if self._interrupted:
                fleet.interrupt()

    def interrupt(self, *, stops: bool) -> None:
        with self._lock:
            self._interrupted, self._stops = True, stops
            if self._fleet is not None:
                self._fleet.interrupt()

    def on(self, event: events.Event) -> None:
        if event["event"] == "task_finished":
            self._tasks.append(_task(event))
        elif event["event"] == "recap":
            self._hosts[event["host"]] = _host(event)
        elif event["event"] == "rolled":
            self._stopped = event["why"]
        if event["event"] not in HIDDEN:
            self._passed_on.put(event)

    def close(self) -> None: ...

    def result(self, code: Exit) -> RunResult:
        return RunResult(code, dict(self._hosts), tuple(self._tasks), self._stopped)


def _event(event: events.Event) -> Event:
    rest = {name: value for name, value in event.items() if name not in ("event", "host", "time")}
    return Event(event["event"], event.get("host", ""), event.get("time", 0.0), rest)


def _task(event: events.Event) -> TaskResult:
    given: dict[str, Any] = {field.name: event[field.name] for field in fields(TaskResult) if field.name in event}
    diff = tuple(
        Change(row["field"], row["before"], row["after"], row.get("why", "")) for row in event.get("diff") or ()
    )
    return TaskResult(**{**given, "diff": diff})


def _host(event: events.Event) -> HostResult:
    given: dict[str, Any] = {field.name: event[field.name] for field in fields(HostResult) if field.name in event}
    return HostResult(**{**given, "exit": Exit(event["exit"])})
