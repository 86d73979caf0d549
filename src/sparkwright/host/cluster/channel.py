"""A member's channel: one connection to the head's coordinator for the duration of the run."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host.cluster import wire
from sparkwright.host.cluster.rendezvous import (
    BARRIER_NAME_PATTERN,
    EVENT_SHAPES,
    FORWARD,
    MAX_TEXT_CHARS,
    RESCUE,
    BarrierKey,
    ClusterState,
    Failure,
    validate_message,
)
from sparkwright.host.cluster.wire import Connection, ConnectionLost, WireError, read_line
from sparkwright.protocol.cluster import MAX_MISSED_HEARTBEATS, Cluster
from sparkwright.ready import wait_for_readable
from sparkwright.secret import Secret
from sparkwright.transport.connection import dial
from sparkwright.trust import bounds
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line

#: limits on the data that a member shares at one barrier: bytes as JSON, and nesting
MAX_SHARED_BYTES, MAX_SHARED_DEPTH = 48 * 2**10, 8
HANDSHAKE_TIMEOUT_S, RETRY_PAUSE_S = 5.0, 0.25
POLL_S = 0.2
#: delay of the first note about missing members, and interval of further notes
NOTE_DELAY_S, NOTE_INTERVAL_S = 2.0, 60.0
#: seconds between calls of `watch` during a wait
WATCH_INTERVAL_S = 1.0
GOODBYE_TIMEOUT_S = 5.0
#: time limit for connecting to the head only to report why this run cannot join
DECLINE_TIMEOUT_S = 10.0


class Channel:
    """A member's connection to the other members' runs, for joining the cluster and waiting at barriers.

    Args:
        note: called with a message for the user.
        redactor: masks secrets in everything that is sent.
        should_stop: returns True once the user has requested this run to stop.
    """

    def __init__(
        self,
        cluster: Cluster,
        token: Secret,
        *,
        note: Callable[[str], None],
        redactor: Redactor,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.cluster = cluster
        self._token, self._note, self._redactor, self._should_stop = token, note, redactor, should_stop
        self._cluster_state = ClusterState(cluster)
        self._state_condition = threading.Condition()
        self._unsent_messages: collections.deque[dict[str, Any]] = collections.deque()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._phase = FORWARD
        self._leaving = False
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._join_sent_s = 0.0
        #: lower and upper bound of this host's clock offset from the head's, in seconds
        self.clock_offset_s = (0.0, 0.0)

    @property
    def generation(self) -> str:
        """An id of this run, the same on all members, derived from the token without revealing it."""
        return wire.derive_generation(self.cluster, self._token)

    # -- the run's interface -----------------------------------------------------------------------------------

    def connect(self, timeout_s: float) -> None:
        """Connect to the head before `join` or `decline_to_join`. Raises Refused if it does not answer.

        Args:
            timeout_s: 0 for a single attempt.
        """
        self._connection = self._connect_to_head(time.monotonic() + timeout_s)

    def join(self) -> None:
        """Join, and wait until the runs of all members have joined.

        Raises Refused or Failed if a member is missing or has failed.
        """
        deadline_s = time.monotonic() + self.cluster.join_s
        connection = self._connection or self._connect_to_head(deadline_s)
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="channel", daemon=True)
        self._thread.start()
        self._join_sent_s = time.time()
        self._send("join")
        key = BarrierKey(FORWARD, "")
        self._wait(key, lambda: self._cluster_state.is_complete, deadline_s, self.cluster.join_s)
        failure = self._cluster_state.failure(key)
        if failure is not None:
            raise _build_error(failure)

    def arrive(
        self,
        name: str,
        data: dict[str, Any],
        timeout_s: float,
        phase: str = FORWARD,
        *,
        wait: bool = True,
        watch: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Arrive at a barrier, wait for all members, and return the data that each one shares, by host name.

        Args:
            data: values for the other members.
            wait: if False, return an empty result at once.
            watch: called every WATCH_INTERVAL_S during the wait; its exceptions end the wait.

        Raises:
            Failed or Refused: A member failed, is lost, or did not arrive within timeout_s.
        """
        key = BarrierKey(phase, name)
        if not BARRIER_NAME_PATTERN.fullmatch(name):
            raise Failed(
                f"'{one_line(name, max_chars=80)}' is not a valid barrier name: use only letters, digits, spaces, _ . and -."
            )
        shared = self._redact_shared(name, data)
        with self._state_condition:
            already_arrived = self._cluster_state.has_arrived(key, self.cluster.rank)
            if already_arrived and self._cluster_state.failure(key) is None:
                raise Failed(f"this run has already passed barrier '{name}'.", fix="Give each barrier its own name.")
        if not already_arrived:
            self._send("arrive", phase=phase, barrier=name, data=shared)
        if not wait:
            return {}
        self._wait(key, lambda: self._cluster_state.is_settled(key), time.monotonic() + timeout_s, timeout_s, watch)
        with self._state_condition:
            failure = self._cluster_state.failure(key)
            if failure is not None:
                raise _build_error(failure)
            return self._cluster_state.shared_data(key)

    def remote_failure(self) -> str:
        """Return the message about another member that failed or was lost; empty if there is none.

        Always empty after this member's own failure, so that nothing interrupts its rescue.
        """
        with self._state_condition:
            failure = self._cluster_state.failures.get(FORWARD)
            return failure.text if failure is not None and self._phase == FORWARD else ""

    def fail(self, task: str, text: str, *, refused: bool = False) -> None:
        """Report the failure of this member, which begins its rescue phase.

        Args:
            task: name of the failed task; empty if none.
            refused: True if nothing was changed.
        """
        self._send("fail", phase=self._phase, refused=refused, at=self._redact_line(task), text=self._redact_line(text))
        self._phase = RESCUE

    def decline_to_join(self, text: str) -> None:
        """Report to all members why this run cannot join.

        Raises Refused if the head does not answer within DECLINE_TIMEOUT_S.
        """
        deadline_s = time.monotonic() + min(self.cluster.join_s, DECLINE_TIMEOUT_S)
        connection = self._connection or self._connect_to_head(deadline_s)
        with contextlib.suppress(OSError, ConnectionLost):
            connection.send(
                {"kind": "fail", "phase": FORWARD, "refused": True, "at": "", "text": self._redact_line(text)}
            )
            goodbye_deadline_s = time.monotonic() + GOODBYE_TIMEOUT_S
            while (remaining_s := goodbye_deadline_s - time.monotonic()) > 0:
                connection.sock.settimeout(remaining_s)
                if not connection.sock.recv(4096):
                    break
        connection.close()

    def close(self) -> None:
        """Send the goodbye and disconnect, within GOODBYE_TIMEOUT_S."""
        if self._thread is not None:
            self._leaving = True
            self._send("bye")
            self._thread.join(GOODBYE_TIMEOUT_S)
        elif self._connection is not None:
            self._connection.close()
        self._wake_sender.close()

    def _redact_line(self, text: str) -> str:
        return one_line(self._redactor.redact_text(text), max_chars=MAX_TEXT_CHARS)

    def _redact_shared(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data with secrets masked. Raises Failed if it is too large or too deeply nested."""
        try:
            shared: dict[str, Any] = bounds.sanitize(self._redactor.redact_value(data), MAX_SHARED_DEPTH)
        except ValueError as error:
            raise Failed(f"the data shared at barrier '{name}' {error}.") from None
        if wire.encoded_size(shared) > MAX_SHARED_BYTES:
            raise Failed(f"the data shared at barrier '{name}' is larger than {MAX_SHARED_BYTES // 2**10} KiB.")
        return shared

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(
        self,
        key: BarrierKey,
        is_ready: Callable[[], bool],
        deadline_s: float,
        timeout_s: float,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until `is_ready()`, or until the barrier's outcome is known, with notes about the missing members.

        After the timeout, this asks the head to fail the barrier; a head that does not answer counts as lost.
        """
        next_note_s, lost_deadline_s, next_watch_s = (
            time.monotonic() + NOTE_DELAY_S,
            0.0,
            time.monotonic() + WATCH_INTERVAL_S,
        )
        while True:
            with self._state_condition:
                if is_ready() or self._cluster_state.is_settled(key):
                    return
                self._state_condition.wait(POLL_S)
                if is_ready() or self._cluster_state.is_settled(key):
                    return
                missing = self._cluster_state.format_missing(key if key.name else None)
            now_s = time.monotonic()
            if key.phase == FORWARD and self._should_stop():
                wait_clause = f"while waiting at barrier '{key.name}'" if key.name else "before the first task"
                raise Failed(f"stopped on request, {wait_clause}")
            if now_s >= next_watch_s:
                watch()
                next_watch_s = time.monotonic() + WATCH_INTERVAL_S
            if now_s >= next_note_s and missing:
                next_note_s = now_s + NOTE_INTERVAL_S
                self._note(f"waiting for {missing}")
            if now_s >= deadline_s and not lost_deadline_s:
                lost_deadline_s = now_s + self.cluster.beat_s * MAX_MISSED_HEARTBEATS
                self._send("overdue", phase=key.phase, barrier=key.name, waited_s=timeout_s)
            elif lost_deadline_s and now_s >= lost_deadline_s:
                self._record_loss("no answer")

    def _connect_to_head(self, deadline_s: float) -> Connection:
        """Return an authenticated connection to the head. Raises Refused after the timeout, Failed on a request to stop."""
        head, address = self.cluster.format_member(0), f"{self.cluster.address} port {self.cluster.port}"
        next_note_s = time.monotonic() + NOTE_DELAY_S
        while True:
            try:
                return self._dial_head(deadline_s)
            except (OSError, ConnectionLost, WireError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            now_s = time.monotonic()
            if self._should_stop():
                raise Failed("stopped on request, before the first task")
            if now_s >= deadline_s:
                fix = f"`invoke runs --host {self.cluster.members[0]}` shows its run. This host must be able to connect to it."
                message = f"{head} did not answer within {self.cluster.join_s:g} s ({address}: {reason.lower()})."
                raise Refused(message, fix=fix)
            if now_s >= next_note_s:
                next_note_s = now_s + NOTE_INTERVAL_S
                self._note(f"waiting for {head} at {address}: {reason.lower()}")
            time.sleep(RETRY_PAUSE_S)

    def _dial_head(self, deadline_s: float) -> Connection:
        handshake_deadline_s = min(time.monotonic() + HANDSHAKE_TIMEOUT_S, max(deadline_s, time.monotonic() + 1))
        sock = dial(self.cluster.address, self.cluster.port, handshake_deadline_s - time.monotonic())
        try:
            line, handshake = wire.answer_greeting(
                read_line(sock, wire.MAX_HELLO_BYTES, handshake_deadline_s), self.cluster, self._token
            )
            sock.sendall(line)
            session = wire.verify_proof(
                read_line(sock, wire.MAX_HELLO_BYTES, handshake_deadline_s), handshake, self._token
            )
            return Connection(sock, self.cluster.beat_s, session)
        except BaseException:
            sock.close()
            raise

    # -- the thread ------------------------------------------------------------------------------------------------

    def _send(self, kind: str, **fields: Any) -> None:
        self._unsent_messages.append({"kind": kind, **fields})
        with contextlib.suppress(OSError):
            self._wake_sender.send(b".")

    def _serve(self, connection: Connection) -> None:
        readers: list[Any] = [connection, self._wake_receiver]
        try:
            while True:
                writers = [connection] if connection.has_unsent else []
                ready = wait_for_readable(readers, POLL_S / 2, writers=writers)
                if self._wake_receiver in ready and not self._wake_receiver.recv(4096):
                    return
                while self._unsent_messages:
                    connection.send(self._unsent_messages.popleft())
                connection.flush()
                if connection in ready:
                    self._read(connection)
                connection.keep_alive()
        except (ConnectionLost, WireError, OSError) as error:
            self._record_loss(str(error))
        except Exception:
            traceback.print_exc()
            self._record_loss("internal error")
        finally:
            connection.close()
            self._wake_receiver.close()

    def _read(self, connection: Connection) -> None:
        for line in connection.read():
            assert connection.session is not None
            event = validate_message(connection.session.unseal(line), EVENT_SHAPES)
            if event["kind"] == "joined" and event["rank"] == self.cluster.rank:
                # the head sent it between this member's join and now
                self.clock_offset_s = (self._join_sent_s - event["now_s"], time.time() - event["now_s"])
            if event["kind"] != "alive":
                with self._state_condition:
                    self._cluster_state.apply(event)
                    self._state_condition.notify_all()

    def _record_loss(self, reason: str) -> None:
        """Record the loss of the head, which fails all barriers, unless this run has sent its goodbye."""
        with self._state_condition:
            if not self._leaving:
                self._cluster_state.apply(
                    {"kind": "lost", "rank": 0, "text": f"lost {self.cluster.format_member(0)}: {reason}"}
                )
            self._state_condition.notify_all()


def _build_error(failure: Failure) -> SparkwrightError:
    return (Refused if failure.refused else Failed)(f"{failure.text.rstrip('.')}.")
