"""The coordinator on a cluster's head: a listener on the hosts' network, and one thread that orders all events.

It listens until every member has joined. Unauthenticated clients receive no data, may use only limited time and memory, and
are dropped with a note.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.cluster import wire
from sparkwright.host.cluster.rendezvous import FORWARD, MESSAGE_SHAPES, BarrierKey, ClusterState, validate_message
from sparkwright.host.cluster.wire import Connection, ConnectionLost, WireError
from sparkwright.host.containers.containers import describe_listening_process
from sparkwright.protocol.cluster import Cluster
from sparkwright.secret import Secret
from sparkwright.visible import format_count

#: time limit for a client to authenticate and join
HANDSHAKE_TIMEOUT_S = 5.0
#: maximum number of clients that have not joined; beyond it, the oldest is dropped
MAX_PENDING = 32
#: maximum number of notes about dropped clients
MAX_NOTES = 5
TICK_INTERVAL_S = 0.1
GOODBYE_TIMEOUT_S = 30.0
#: how long a health check may take to release the port, which it does when a run starts
PORT_TIMEOUT_S = 3.0


class Coordinator:
    """The coordinator of a cluster's runs. Creating it opens the listener, or raises Refused if the port is in use.

    Args:
        note: called with a message for the user, from another thread.
    """

    def __init__(self, cluster: Cluster, token: Secret, note: Callable[[str], None]) -> None:
        self._cluster, self._token, self._note = cluster, token, note
        self._listener: socket.socket | None = open_listener(cluster)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        #: nonces of the connections that have not joined
        self._pending: dict[Connection, str] = {}
        self._members: dict[int, Connection] = {}
        self._ranks: dict[Connection, int] = {}
        self._cluster_state = ClusterState(cluster)
        self._events: list[dict[str, Any]] = []
        self._unpublished_events: collections.deque[dict[str, Any]] = collections.deque()
        self._dropped_count = 0
        #: ranks that have joined, or reported why they cannot join
        self._authenticated_ranks: set[int] = set()
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="cluster", daemon=True)
        self._thread.start()

    def close(self, goodbye_timeout_s: float = GOODBYE_TIMEOUT_S) -> None:
        """Stop once every member has sent its goodbye or is lost, at the latest after goodbye_timeout_s."""
        deadline_s = time.monotonic() + goodbye_timeout_s
        while time.monotonic() < deadline_s and self._members and self._thread.is_alive():
            time.sleep(TICK_INTERVAL_S / 2)
        self._stop_event.set()
        self._thread.join()
        if self._dropped_count > MAX_NOTES:
            self._note(f"dropped {format_count(self._dropped_count - MAX_NOTES, 'more connection')}")

    def wait_for_others(self, timeout_s: float) -> None:
        """Wait until all members except the head have connected, at most timeout_s."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and len(self._authenticated_ranks | {0}) < len(self._cluster.members):
            time.sleep(TICK_INTERVAL_S / 2)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stop_event.is_set():
                for key, _ in self._selector.select(TICK_INTERVAL_S):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(key.data)
                self._tick()
        except Exception:  # the members will notice the silence
            traceback.print_exc()
        finally:
            self._close_listener()
            for connection in [*self._ranks, *self._pending]:
                self._close(connection)
            self._members.clear()
            self._selector.close()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._pending) >= MAX_PENDING:
            oldest = next(
                (connection for connection in self._pending if connection.session is None), next(iter(self._pending))
            )
            self._drop(oldest, "too many connections")
        connection, nonce = Connection(sock, self._cluster.beat_s), wire.generate_nonce()
        self._pending[connection] = nonce
        self._selector.register(connection, selectors.EVENT_READ, connection)
        try:
            connection.send_line(wire.build_greeting(nonce))
        except ConnectionLost as lost:
            self._drop(connection, f"{lost}")

    def _read(self, connection: Connection) -> None:
        try:
            for line in connection.read() if self._is_open(connection) else ():
                self._handle_line(connection, line)
                if not self._is_open(connection):
                    return  # data after a goodbye is ignored
        except (ConnectionLost, WireError) as error:
            self._handle_loss(connection, str(error))

    def _is_open(self, connection: Connection) -> bool:
        """Return True until the connection is dropped or closed."""
        return connection in self._pending or connection in self._ranks

    def _handle_line(self, connection: Connection, line: bytes) -> None:
        if connection.session is None:
            rank, proof, session = wire.verify_claim(line, self._pending[connection], self._cluster, self._token)
            if rank in self._ranks.values() or rank in self._cluster_state.joined:
                raise WireError(f"{self._cluster.format_member(rank)} has already joined")
            connection.send_line(proof)
            connection.start_session(session)
            self._ranks[connection] = rank
            self._authenticated_ranks.add(rank)
            return
        message = validate_message(connection.session.unseal(line), MESSAGE_SHAPES)
        if connection in self._pending and message["kind"] == "join":
            self._register_member(connection)
        elif connection in self._pending and message["kind"] == "fail":  # it reports why it cannot join
            self._handle_message(self._ranks[connection], message)
            self._close(connection)
        elif connection in self._pending:
            raise WireError("it sent another message before joining")
        elif message["kind"] == "bye":
            self._publish({"kind": "gone", "rank": self._ranks[connection]})
            self._close(connection)
        else:
            self._handle_message(self._ranks[connection], message)

    def _register_member(self, connection: Connection) -> None:
        """Make the connection a member, and send it all past events."""
        for event in self._events:
            connection.send(event)
        del self._pending[connection]
        self._members[self._ranks[connection]] = connection
        self._publish({"kind": "joined", "rank": self._ranks[connection], "now_s": time.time()})
        if self._cluster_state.is_complete:
            self._close_listener()

    def _handle_message(self, rank: int, message: dict[str, Any]) -> None:
        kind, phase = message["kind"], message.get("phase", FORWARD)
        if kind == "arrive" and not self._cluster_state.has_arrived(BarrierKey(phase, message["barrier"]), rank):
            fields = {name: message[name] for name in ("phase", "barrier", "data")}
            self._publish({"kind": "arrived", "rank": rank, **fields})
        elif kind == "fail" and phase not in self._cluster_state.failures:
            location = f" at '{message['at']}'" if message["at"] else ""
            text = f"{self._cluster.format_member(rank)} failed{location}: {message['text']}"
            self._publish({"kind": "failed", "phase": phase, "text": text, "refused": message["refused"]})
        elif kind == "overdue":
            self._handle_overdue(message)

    def _handle_overdue(self, message: dict[str, Any]) -> None:
        """Fail a barrier (or the join) for all members because one member's wait timed out, unless the outcome is known."""
        key = BarrierKey(message["phase"] if message["barrier"] else FORWARD, message["barrier"])
        if self._cluster_state.is_settled(key) or (self._cluster_state.is_complete and not key.name):
            return
        missing = self._cluster_state.format_missing(key if key.name else None)
        action = f"reach barrier '{key.name}'" if key.name else "join"
        text = f"{missing} did not {action} within {message['waited_s']:g} s"
        self._publish({"kind": "failed", "phase": key.phase, "text": text, "refused": not key.name})

    def _publish(self, event: dict[str, Any]) -> None:
        """Apply an event and send it to all members. If a member turns out to be lost, that event is published afterwards."""
        self._unpublished_events.append(event)
        if len(self._unpublished_events) > 1:
            return
        while self._unpublished_events:
            try:
                self._broadcast(self._unpublished_events[0])
            finally:
                self._unpublished_events.popleft()

    def _broadcast(self, event: dict[str, Any]) -> None:
        self._cluster_state.apply(event)
        self._events.append(event)
        for member in list(self._members.values()):
            try:
                member.send(event)
            except ConnectionLost as lost:
                self._handle_loss(member, str(lost))

    def _tick(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._pending):
            if now_s - connection.opened_s > HANDSHAKE_TIMEOUT_S:
                self._drop(connection, f"no answer within {HANDSHAKE_TIMEOUT_S:g} s")
        for member in list(self._members.values()):
            try:
                member.flush()
                member.keep_alive()
            except ConnectionLost as lost:
                self._handle_loss(member, str(lost))

    def _handle_loss(self, connection: Connection, reason: str) -> None:
        if connection in self._pending:
            self._drop(connection, reason)
        elif connection in self._ranks:
            rank = self._ranks[connection]
            event = {"kind": "lost", "rank": rank, "text": f"lost {self._cluster.format_member(rank)}: {reason}"}
            with contextlib.suppress(ConnectionLost):  # a suspended member will read it when it resumes
                connection.send(event)
            self._close(connection)
            self._publish(event)

    def _drop(self, connection: Connection, reason: str) -> None:
        """Drop a connection that has not joined, with a note for each of the first MAX_NOTES."""
        self._dropped_count += 1
        if self._dropped_count <= MAX_NOTES:
            try:
                address = connection.sock.getpeername()[0]
            except OSError:
                address = "an unknown address"
            self._note(f"dropped a connection from {address}: {reason}")
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._pending.pop(connection, None)
        rank = self._ranks.pop(connection, None)
        if rank is not None and self._members.get(rank) is connection:
            del self._members[rank]
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        with contextlib.suppress(ConnectionLost):
            connection.flush()
        connection.close()

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        for connection in list(self._pending):
            self._close(connection)


def open_listener(cluster: Cluster) -> socket.socket:
    """Return the head's listening socket. Raises Refused if the port is in use or this host does not have the address."""
    deadline_s = time.monotonic() + PORT_TIMEOUT_S
    while True:
        try:
            return _bind(cluster)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                raise _bind_error(cluster, error) from None
        time.sleep(TICK_INTERVAL_S)


def _bind(cluster: Cluster) -> socket.socket:
    family = socket.AF_INET6 if ":" in cluster.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((cluster.address, cluster.port))
        sock.listen(MAX_PENDING)
        sock.setblocking(False)
        return sock
    except OSError:
        sock.close()
        raise


def _bind_error(cluster: Cluster, error: OSError) -> Refused:
    host, port = cluster.members[0], cluster.port
    if error.errno == errno.EADDRINUSE:
        holder = describe_listening_process(port)
        message = f"port {port} of {host}, the cluster's barrier port, is in use{f' by {holder}' if holder else ''}."
        return Refused(message, fix="Stop that program, or set another `barrier_port:` in hosts/groups.yml.")
    if error.errno == errno.EADDRNOTAVAIL:
        fix = f"Correct `fabric:` in hosts/{host}.yml; `ip -br addr` on the host lists its addresses."
        return Refused(f"{host} has no address {cluster.address}, which the cluster's members connect to.", fix=fix)
    return Refused(f"{host} can't listen on {cluster.address} port {port}: {error.strerror}.")
