"""A member's channel: one connection to the head's coordinator for the length of the run."""

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
    EVENTS,
    FORWARD,
    NAME,
    RESCUE,
    TEXT_CHARACTERS,
    Failure,
    Key,
    Meeting,
    fitted,
)
from sparkwright.host.cluster.wire import Connection, Lost, WireError, line_of
from sparkwright.protocol.cluster import SILENT, Cluster
from sparkwright.ready import readable
from sparkwright.secret import Secret
from sparkwright.transport.connection import dial
from sparkwright.trust import bounds
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line

#: limits of the data that a member shares at one barrier, as JSON
SHARED_BYTES, SHARED_DEPTH = 48 * 2**10, 8
HANDSHAKE_S, AGAIN_S = 5.0, 0.25
POLL_S = 0.2
#: delay before a note names the missing members, and before the next one
SAY_S, SAY_AGAIN_S = 2.0, 60.0
#: between two calls of `watch` during a wait
WATCH_S = 1.0
GOODBYE_S = 5.0
#: for a run that cannot join, to reach the head
COME_S = 10.0


class Channel:
    """A member's side of a cluster's runs: it joins the head and meets the other members at barriers.

    Args:
        note: called with a sentence for the user.
        hidden: the redactor that knows the secrets; other hosts never receive them.
        stopped: returns True once this run was asked to stop.
    """

    def __init__(
        self,
        cluster: Cluster,
        token: Secret,
        *,
        note: Callable[[str], None],
        hidden: Redactor,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.cluster = cluster
        self._token, self._note, self._hidden, self._stopped = token, note, hidden, stopped
        self._meeting = Meeting(cluster)
        self._changed = threading.Condition()
        self._unsent: collections.deque[dict[str, Any]] = collections.deque()
        self._bell, self._heard = socket.socketpair()
        self._heard.setblocking(False)
        self._phase = FORWARD
        self._leaving = False
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._sent_s = 0.0
        #: lower and upper bound of this host's clock offset to the head's, seconds
        self.ahead_s = (0.0, 0.0)

    @property
    def generation(self) -> str:
        """The name of this joint run, the same on all members; it reveals nothing about the token."""
        return wire.named(self.cluster, self._token)

    # -- what a run does with it -----------------------------------------------------------------------------------

    def connect(self, within_s: float) -> None:
        """Connect to the head before `join` or `cannot_come`. Raises Refused if it does not answer.

        Args:
            within_s: how long to try; 0 for a single try.
        """
        self._connection = self._connected(time.monotonic() + within_s)

    def join(self) -> None:
        """Join, and wait until the runs of all members have joined.

        Raises Refused or Failed with the missing members or the reason.
        """
        until_s = time.monotonic() + self.cluster.join_s
        connection = self._connection or self._connected(until_s)
        self._thread = threading.Thread(target=self._serve, args=(connection,), name="channel", daemon=True)
        self._thread.start()
        self._sent_s = time.time()
        self._send("join")
        key = Key(FORWARD, "")
        self._wait(key, lambda: self._meeting.complete, until_s, self.cluster.join_s)
        failure = self._meeting.failure(key)
        if failure is not None:
            raise _raised(failure)

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
        """Arrive at a barrier, wait for all members, and return the data that each shares, by host name.

        Args:
            data: the data that this member shares.
            timeout_s: how long to wait for the others.
            wait: False returns at once, with an empty result.
            watch: called every WATCH_S during the wait; an exception from it ends the wait.

        Raises:
            Failed: Not all members will arrive, with the reason.
        """
        key = Key(phase, name)
        if not NAME.fullmatch(name):
            raise Failed(f"'{one_line(name, at_most=80)}' is not a barrier name: letters, digits, spaces, _ . - only.")
        shared = self._bounded(name, data)
        with self._changed:
            again = self._meeting.arrived(key, self.cluster.rank)
            if again and self._meeting.failure(key) is None:
                raise Failed(f"this run has passed barrier '{name}' already.", fix="Give each barrier its own name.")
        if not again:
            self._send("arrive", phase=phase, barrier=name, data=shared)
        if not wait:
            return {}
        self._wait(key, lambda: self._meeting.settled(key), time.monotonic() + timeout_s, timeout_s, watch)
        with self._changed:
            failure = self._meeting.failure(key)
            if failure is not None:
                raise _raised(failure)
            return self._meeting.shared(key)

    def failed_elsewhere(self) -> str:
        """Return the reason why this run can no longer succeed (another member failed or is lost), or "" if there is none.

        Always empty once this run has failed itself: then it restores the previous state, whatever the others do.
        """
        with self._changed:
            failure = self._meeting.failures.get(FORWARD)
            return failure.text if failure is not None and self._phase == FORWARD else ""

    def fail(self, at: str, text: str, *, refused: bool = False) -> None:
        """Report that this member has failed; from here on it is in its rescue phase.

        Args:
            at: the task; empty for none.
            refused: it had changed nothing.
        """
        self._send("fail", phase=self._phase, refused=refused, at=self._sentence(at), text=self._sentence(text))
        self._phase = RESCUE

    def cannot_come(self, text: str) -> None:
        """Tell the others why this run cannot join, instead of joining.

        Raises Refused if the head does not answer within COME_S.
        """
        until_s = time.monotonic() + min(self.cluster.join_s, COME_S)
        connection = self._connection or self._connected(until_s)
        with contextlib.suppress(OSError, Lost):
            connection.say({"kind": "fail", "phase": FORWARD, "refused": True, "at": "", "text": self._sentence(text)})
            end_s = time.monotonic() + GOODBYE_S
            while (left_s := end_s - time.monotonic()) > 0:
                connection.sock.settimeout(left_s)
                if not connection.sock.recv(4096):
                    break
        connection.close()

    def close(self) -> None:
        """Send a goodbye, and wait a moment for the head to receive it."""
        if self._thread is not None:
            self._leaving = True
            self._send("bye")
            self._thread.join(GOODBYE_S)
        elif self._connection is not None:
            self._connection.close()
        self._bell.close()

    def _sentence(self, text: str) -> str:
        return one_line(self._hidden.text(text), at_most=TEXT_CHARACTERS)

    def _bounded(self, name: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data to share, with secrets hidden. Raises Failed if it is too large or nested too deep."""
        try:
            shared: dict[str, Any] = bounds.clean(self._hidden.value(data), SHARED_DEPTH)
        except ValueError as error:
            raise Failed(f"what is shared at barrier '{name}' {error}.") from None
        if wire.size(shared) > SHARED_BYTES:
            raise Failed(f"what is shared at barrier '{name}' has more than {SHARED_BYTES // 2**10} KiB.")
        return shared

    # -- waiting ---------------------------------------------------------------------------------------------------

    def _wait(
        self,
        key: Key,
        ready: Callable[[], bool],
        until_s: float,
        given_s: float,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until a barrier is ready or has failed, and name the missing members. After the timeout the head decides."""
        say_s, overdue_s, watch_s = time.monotonic() + SAY_S, 0.0, time.monotonic() + WATCH_S
        while True:
            with self._changed:
                if ready() or self._meeting.settled(key):
                    return
                self._changed.wait(POLL_S)
                if ready() or self._meeting.settled(key):
                    return
                missing = self._meeting.missing(key if key.name else None)
            now_s = time.monotonic()
            if key.phase == FORWARD and self._stopped():
                where = f"while waiting at barrier '{key.name}'" if key.name else "before the first task"
                raise Failed(f"stopped on request, {where}")
            if now_s >= watch_s:
                watch()
                watch_s = time.monotonic() + WATCH_S
            if now_s >= say_s and missing:
                say_s = now_s + SAY_AGAIN_S
                self._note(f"waiting for {missing}")
            if now_s >= until_s and not overdue_s:
                overdue_s = now_s + self.cluster.beat_s * SILENT
                self._send("overdue", phase=key.phase, barrier=key.name, waited_s=given_s)
            elif overdue_s and now_s >= overdue_s:
                self._lose("no answer")

    def _connected(self, until_s: float) -> Connection:
        """Return an authenticated connection to the head. Raises Refused after the timeout, Failed if the run was stopped."""
        head, place = self.cluster.named(0), f"{self.cluster.address} port {self.cluster.port}"
        say_s = time.monotonic() + SAY_S
        while True:
            try:
                return self._handshaken(until_s)
            except (OSError, Lost, WireError) as error:
                why = getattr(error, "strerror", None) or str(error)
            now_s = time.monotonic()
            if self._stopped():
                raise Failed("stopped on request, before the first task")
            if now_s >= until_s:
                fix = f"`invoke runs --host {self.cluster.members[0]}` shows its run; the hosts must reach each other there."
                waited = f"{head} never came within {self.cluster.join_s:g} s ({place}: {why.lower()})."
                raise Refused(waited, fix=fix)
            if now_s >= say_s:
                say_s = now_s + SAY_AGAIN_S
                self._note(f"waiting for {head} at {place}: {why.lower()}")
            time.sleep(AGAIN_S)

    def _handshaken(self, until_s: float) -> Connection:
        end_s = min(time.monotonic() + HANDSHAKE_S, max(until_s, time.monotonic() + 1))
        sock = dial(self.cluster.address, self.cluster.port, end_s - time.monotonic())
        try:
            line, handshake = wire.claim(line_of(sock, wire.HELLO_BYTES, end_s), self.cluster, self._token)
            sock.sendall(line)
            session = wire.proved(line_of(sock, wire.HELLO_BYTES, end_s), handshake, self._token)
            return Connection(sock, self.cluster.beat_s, session)
        except BaseException:
            sock.close()
            raise

    # -- the thread ------------------------------------------------------------------------------------------------

    def _send(self, kind: str, **fields: Any) -> None:
        self._unsent.append({"kind": kind, **fields})
        with contextlib.suppress(OSError):
            self._bell.send(b".")

    def _serve(self, connection: Connection) -> None:
        reading: list[Any] = [connection, self._heard]
        try:
            while True:
                writing = [connection] if connection.waiting else []
                ready = readable(reading, POLL_S / 2, writing=writing)
                if self._heard in ready and not self._heard.recv(4096):
                    return
                while self._unsent:
                    connection.say(self._unsent.popleft())
                connection.flush()
                if connection in ready:
                    self._read(connection)
                connection.beat()
        except (Lost, WireError, OSError) as error:
            self._lose(str(error))
        except Exception:
            traceback.print_exc()
            self._lose("internal error")
        finally:
            connection.close()
            self._heard.close()

    def _read(self, connection: Connection) -> None:
        for line in connection.read():
            assert connection.session is not None
            event = fitted(connection.session.opened(line), EVENTS)
            if event["kind"] == "joined" and event["rank"] == self.cluster.rank:  # sent between the two moments
                self.ahead_s = (self._sent_s - event["now_s"], time.time() - event["now_s"])
            if event["kind"] != "alive":
                with self._changed:
                    self._meeting.apply(event)
                    self._changed.notify_all()

    def _lose(self, why: str) -> None:
        """Record the loss of the head, which fails all barriers, unless it had said goodbye."""
        with self._changed:
            if not self._leaving:
                self._meeting.apply({"kind": "lost", "rank": 0, "text": f"lost {self.cluster.named(0)}: {why}"})
            self._changed.notify_all()


def _raised(failure: Failure) -> SparkwrightError:
    return (Refused if failure.refused else Failed)(f"{failure.text.rstrip('.')}.")
