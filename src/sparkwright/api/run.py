"""`Run`: a run that a program started, with its events and its result."""

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
from sparkwright.console.events.subscriber import HIDDEN_EVENTS
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import convert_error
from sparkwright.protocol import events

#: maximum time that `close` waits for the connections to close
CLOSE_TIMEOUT_S = 10.0


class Run:
    """A run in progress. Iterate over it for its events, or call `result`; both wait until it ends.

    Leaving it early (`break`, `close`, Ctrl-C) closes the connections, but the hosts continue, as after Ctrl-C in a terminal.
    `Fleet.attach` follows them again. `stop` asks the hosts to stop at the next safe point.
    """

    def __init__(self, root: Path, start_run: Callable[[Listener], Sequence[int]]) -> None:
        self._events: queue.Queue[events.Event | None] = queue.Queue()
        self._listener = _Listener(self._events)
        self._result: RunResult | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(root, start_run), daemon=True, name="sparkwright run")
        self._thread.start()

    def __iter__(self) -> Iterator[Event]:
        """Yield the events as they arrive. At the end, raise the error that `result` would raise."""
        has_ended = False
        try:
            while (event := self._events.get()) is not None:
                yield _to_event(event)
            has_ended = True
        finally:
            if not has_ended:
                self.close()
        self._events.put(None)  # so that another iteration ends at once
        if self._error is not None:
            raise self._error

    def result(self) -> RunResult:
        """Wait for the end and return the result, which may include failed hosts; see `RunResult.check`.

        Raises Refused if nothing was started, Inconclusive if the run was closed early, and other errors of the laptop.
        """
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Ask the hosts to stop at the next safe point, without waiting for them. Continue to iterate, or call `result`."""
        self._listener.interrupt(stop_hosts=True)

    def close(self) -> None:
        """Close the connections. The run continues on the hosts."""
        if self._thread.is_alive():
            self._listener.interrupt(stop_hosts=False)
            self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, root: Path, start_run: Callable[[Listener], Sequence[int]]) -> None:
        try:
            with here.use_folder(root):
                codes = start_run(self._listener)
            self._result = self._listener.result(worst_exit_code(codes))
        except SparkwrightError as error:
            self._error = error
        except Exception as error:
            self._error = convert_error(error)
            self._error.__cause__ = error
        finally:
            self._events.put(None)


class _Listener:
    """Collects results from the events of a run, and forwards the events to the program's thread."""

    def __init__(self, events_queue: queue.Queue[events.Event | None]) -> None:
        self._event_queue = events_queue
        self._fleet: Fleet | None = None
        self._interrupted = self._stop_requested = False
        self._lock = threading.Lock()
        self._tasks: list[TaskResult] = []
        self._hosts: dict[str, HostResult] = {}
        self._stop_reason = ""

    def attach(self, fleet: Fleet) -> None:
        fleet.ask_stop = lambda hosts, is_running: self._stop_requested
        with self._lock:
            self._fleet = fleet
            if self._interrupted:
                fleet.interrupt()

    def interrupt(self, *, stop_hosts: bool) -> None:
        with self._lock:
            self._interrupted, self._stop_requested = True, stop_hosts
            if self._fleet is not None:
                self._fleet.interrupt()

    def on(self, event: events.Event) -> None:
        if event["event"] == "task_finished":
            self._tasks.append(_to_task_result(event))
        elif event["event"] == "recap":
            self._hosts[event["host"]] = _to_host_result(event)
        elif event["event"] == "rolled":
            self._stop_reason = event["why"]
        if event["event"] not in HIDDEN_EVENTS:
            self._event_queue.put(event)

    def close(self) -> None: ...

    def result(self, code: Exit) -> RunResult:
        return RunResult(code, dict(self._hosts), tuple(self._tasks), self._stop_reason)


def _to_event(event: events.Event) -> Event:
    other_fields = {name: value for name, value in event.items() if name not in ("event", "host", "time")}
    return Event(event["event"], event.get("host", ""), event.get("time", 0.0), other_fields)


def _select_fields(event: events.Event, result_type: type[TaskResult] | type[HostResult]) -> dict[str, Any]:
    return {field.name: event[field.name] for field in fields(result_type) if field.name in event}


def _to_task_result(event: events.Event) -> TaskResult:
    diff = tuple(
        Change(row["field"], row["before"], row["after"], row.get("why", "")) for row in event.get("diff") or ()
    )
    return TaskResult(**{**_select_fields(event, TaskResult), "diff": diff})


def _to_host_result(event: events.Event) -> HostResult:
    return HostResult(**{**_select_fields(event, HostResult), "exit": Exit(event["exit"])})
