"""Run many streams at once, each in its own thread and on a connection that is opened before the clock starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.measure import stream
from sparkwright.measure.background import suspend_gc
from sparkwright.measure.connection import connect
from sparkwright.measure.http_probe import Target
from sparkwright.measure.stream import Recording, Stream, StreamError

STACK_BYTES = 256 * 1024
#: a later request's connection is opened this many seconds before its send time, because servers close idle connections
CONNECT_AHEAD_S = 0.5


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a load."""

    body: dict[str, Any]
    #: seconds after the start at which to send it; if concurrency is limited, the earliest time
    at_s: float = 0.0
    #: group whose streams are reported together
    group: str = ""


@dataclass(slots=True)
class Outcome:
    """The outcome of a request: a stream, or an error."""

    request: Request
    stream: Stream | None = None
    error: str = ""


def send_all(
    target: Target,
    requests: Sequence[Request],
    *,
    concurrency: int = 0,
    cap_s: float = 600,
    on_chunk: Callable[[int], None] = lambda chunks: None,
    on_done: Callable[[int], None] = lambda done: None,
) -> list[Outcome]:
    """Send all requests, wait for them, and return the outcomes in the order of the requests.

    Errors are part of the outcomes. Responses are parsed after all have arrived. TTFT does not include waiting for a worker.

    Args:
        concurrency: number of workers, each of which sends one request after another; 0 to send each request at its own time.
        cap_s: seconds after which a stream is closed.
        on_chunk: called after each piece of a stream with the number of its pieces so far.
        on_done: called after each request with the number of finished requests.
    """
    worker_count = min(concurrency or len(requests), len(requests))
    settings = {"api_key": target.api_key, "cap_s": cap_s, "timeout_s": target.timeout_s, "on_chunk": on_chunk}
    queue = _Queue(target.base_url, requests, settings, on_done, worker_count)
    previous_stack_bytes = threading.stack_size(STACK_BYTES)
    try:
        threads = [threading.Thread(target=queue.work, daemon=True) for _ in range(worker_count)]
        for thread in threads:
            thread.start()
        queue.ready.wait()
        with suspend_gc():
            queue.start_s = time.perf_counter() + 0.01
            queue.begin.set()
            for thread in threads:
                thread.join()
    finally:
        threading.stack_size(previous_stack_bytes)
    return [
        _build_outcome(request, recording, target.http.token_count_keys)
        for request, recording in zip(requests, queue.recordings, strict=True)
    ]


class _Queue:
    """The requests of a load, from which workers take the next one to send."""

    def __init__(
        self,
        base_url: str,
        requests: Sequence[Request],
        settings: dict[str, Any],
        on_done: Callable[[int], None],
        worker_count: int,
    ) -> None:
        """Initialize the queue. settings: further arguments of `stream.record`."""
        self.recordings: list[Recording | Exception | None] = [None] * len(requests)
        self.ready, self.begin, self.start_s = threading.Barrier(worker_count + 1), threading.Event(), 0.0
        self._base_url, self._requests, self._settings, self._on_done = base_url, requests, settings, on_done
        self._waiting_indexes, self._done_count, self._mutex = iter(range(len(requests))), 0, threading.Lock()

    def work(self) -> None:
        """Send requests until none is left, each at its own time."""
        index = self._take_next()
        connection = (
            self._open_connection() if index is not None and self._requests[index].at_s < CONNECT_AHEAD_S else None
        )
        self.ready.wait()
        self.begin.wait()
        while index is not None:
            send_at_s = self.start_s + self._requests[index].at_s
            if connection is None:
                _sleep_until(send_at_s - CONNECT_AHEAD_S)
                connection = self._open_connection()
            _sleep_until(send_at_s)
            try:
                body = self._requests[index].body
                self.recordings[index] = stream.record(self._base_url, body, connection=connection, **self._settings)
            except Exception as error:
                self.recordings[index] = error
            with self._mutex:
                self._done_count += 1
                self._on_done(self._done_count)
            index, connection = self._take_next(), None

    def _take_next(self) -> int | None:
        with self._mutex:
            return next(self._waiting_indexes, None)

    def _open_connection(self) -> Any:
        try:
            return connect(self._base_url, self._settings["timeout_s"])
        except OSError:
            return None  # `record` tries again and raises the error


def _sleep_until(at_s: float) -> None:
    """Sleep until a time of time.perf_counter, or return immediately if it has passed."""
    wait_s = at_s - time.perf_counter()
    if wait_s > 0:
        time.sleep(wait_s)


def _build_outcome(
    request: Request, recording: Recording | Exception | None, counter_keys: stream.CounterKeys
) -> Outcome:
    if not isinstance(recording, Recording):
        return Outcome(request, error=str(recording or "not sent"))
    try:
        return Outcome(request, stream.parse_recording(recording, counter_keys))
    except StreamError as error:
        return Outcome(request, error=str(error))
