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
from sparkwright.app.outcome import worst_exit_code
from sparkwright.app.runs.presenters import Listener
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import convert_error
from sparkwright.protocol import events

#: keep-alive events
HIDDEN_EVENTS = ("alive",)
#: how long `close` waits for connections to close, in seconds
CLOSE_TIMEOUT_S = 10.0


class Run:
    """A run in progress. Iterate over it for its events, or call `result`; both wait for it.

    Leaving it early (`break`, `close`, Ctrl-C) closes the connections and leaves the hosts at work, as Ctrl-C in a terminal does
    by default. `sparkwright attach` follows them again. `stop` asks the hosts to stop at the next safe point instead.
    """

    def __init__(self, root: Path, begin: Callable[[Listener], Sequence[int]]) -> None:
        self._events: queue.Queue[events.Event | None] = queue.Queue()
        self._listener = _Listener(self._events)
        self._result: RunResult | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(root, begin), daemon=True, name="sparkwright run")
        self._thread.start()

    def __iter__(self) -> Iterator[Event]:
        """Yield the events as they come. Raises at the end the error that `result` would raise."""
        ended = False
        try:
            while (event := self._events.get()) is not None:
                yield _to_event(event)
            ended = True
        finally:
            if not ended:
                self.close()
        self._events.put(None)  # another iteration ends at once
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
        """Ask the hosts to stop at the next safe point, and return at once. The result contains their exit codes."""
        self._listener.interrupt(stops=True)

    def close(self) -> None:
        """Close the connections. Hosts that are working continue."""
        if self._thread.is_alive():
            self._listener.interrupt(stops=False)
            self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, root: Path, begin: Callable[[Listener], Sequence[int]]) -> None:
        try:
            with here.use_folder(root):
                codes = begin(self._listener)
            self._result = self._listener.result(worst_exit_code(codes))
        except SparkwrightError as error:
            self._error = error
        except Exception as error:
            self._error = convert_error(error)
            self._error.__cause__ = error
        finally:
            self._events.put(None)


class _Listener:
    """Receives the events in the run's thread, collects the results, and passes the events on."""

    def __init__(self, events_queue: queue.Queue[events.Event | None]) -> None:
        self._events_out = events_queue
        self._fleet: Fleet | None = None
        self._interrupted = self._stop_requested = False
        self._lock = threading.Lock()
        self._tasks: list[TaskResult] = []
        self._hosts: dict[str, HostResult] = {}
        self._stopped = ""

    def attach(self, fleet: Fleet) -> None:
        fleet.ask_stop = lambda hosts: self._stop_requested
        with self._lock:
            self._fleet = fleet
            if self._interrupted:
                fleet.interrupt()

    def interrupt(self, *, stops: bool) -> None:
        with self._lock:
            self._interrupted, self._stop_requested = True, stops
            if self._fleet is not None:
                self._fleet.interrupt()

    def on(self, event: events.Event) -> None:
        if event["event"] == "task_finished":
            self._tasks.append(_to_task_result(event))
        elif event["event"] == "recap":
            self._hosts[event["host"]] = _to_host_result(event)
        elif event["event"] == "rolled":
            self._stopped = event["why"]
        if event["event"] not in HIDDEN_EVENTS:
            self._events_out.put(event)

    def close(self) -> None: ...

    def result(self, code: Exit) -> RunResult:
        return RunResult(code, dict(self._hosts), tuple(self._tasks), self._stopped)


def _to_event(event: events.Event) -> Event:
    other_fields = {name: value for name, value in event.items() if name not in ("event", "host", "time")}
    return Event(event["event"], event.get("host", ""), event.get("time", 0.0), other_fields)


def _to_task_result(event: events.Event) -> TaskResult:
    known_fields: dict[str, Any] = {
        field.name: event[field.name] for field in fields(TaskResult) if field.name in event
    }
    diff = tuple(
        Change(row["field"], row["before"], row["after"], row.get("why", "")) for row in event.get("diff") or ()
    )
    return TaskResult(**{**known_fields, "diff": diff})


def _to_host_result(event: events.Event) -> HostResult:
    known_fields: dict[str, Any] = {
        field.name: event[field.name] for field in fields(HostResult) if field.name in event
    }
    return HostResult(**{**known_fields, "exit": Exit(event["exit"])})
