"""The servers behind the stand-in: their health, their selection and their requests."""

from __future__ import annotations

import csv
import http.client
import io
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sparkwright.gateway import operations, render
from sparkwright.gateway.statistics import BACKEND
from sparkwright.sandbox.stand_in.files import Backend, Files, Server

FALL = 3
#: maximum bytes of an answer to a check
CHECK_BYTES = 65536
#: flags of `show servers state`: forced maintenance, forced drain
FORCED = {"": 0, operations.REST: 1, operations.DRAIN: 8}
#: flag of `disabled` in the configuration
DISABLED = 4
STATE_COLUMNS = ("be_name", "srv_name", "srv_addr", "srv_admin_state", "srv_port")
STATUS = {"": "UP", operations.REST: "MAINT", operations.DRAIN: "DRAIN"}


class NoServer(Exception):
    """No server takes the request.

    Args:
        code: error code of the answer.
    """

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Upstream:
    """The current state of a server. As in HAProxy it is up until the first failed check.

    Args:
        server: the server.
        forced: state that the operator has set, or an empty string.
    """

    def __init__(self, server: Server, forced: str) -> None:
        self.server, self.forced = server, forced
        self.failures = FALL - 1
        self.running = self.requests = 0

    @property
    def up(self) -> bool:
        return self.failures < FALL and not self.forced

    @property
    def admin_state(self) -> int:
        return FORCED[self.forced] | (DISABLED if self.server.disabled else 0)

    @property
    def status(self) -> str:
        return "DOWN" if self.failures >= FALL and not self.forced else STATUS[self.forced]


class Routing:
    """Routing by one reading of the configuration files. Its requests end with it.

    Args:
        files: the configuration files.
        drained: server states saved before a reload, the text of operations.STATES.
    """

    def __init__(self, files: Files, drained: str) -> None:
        self.files = files
        self.ended = threading.Event()
        #: backend and server of each response
        self.makers: dict[str, tuple[str, str]] = {}
        self._changed = threading.Condition()
        forced = _forced(drained)
        self._servers = {
            name: [
                Upstream(server, forced.get((name, server.name), operations.REST if server.disabled else ""))
                for server in backend.servers
            ]
            for name, backend in files.backends.items()
        }
        self._queued, self.errors = dict.fromkeys(files.backends, 0), dict.fromkeys(files.backends, 0)

    def start(self) -> None:
        """Check the servers from now on."""
        for name, servers in self._servers.items():
            for server in servers:
                threading.Thread(target=self._check, args=(self.files.backends[name], server), daemon=True).start()

    def up(self, backend: str) -> bool:
        """Return True if a server of the backend is up."""
        return any(upstream.up for upstream in self._servers[backend])

    @contextmanager
    def taken(self, backend: str, tried: set[str]) -> Iterator[Server]:
        """Yield the server that takes a request, and hold its slot during the `with` block. Raises NoServer.

        Args:
            backend: name of the backend.
            tried: servers that have not answered.
        """
        until_s = time.monotonic() + self.files.queue_s
        with self._changed:
            self._queued[backend] += 1
            try:
                while (found := self._free(backend, tried)) is None:
                    if not self._changed.wait(until_s - time.monotonic()):
                        raise NoServer("overloaded")
            finally:
                self._queued[backend] -= 1
            found.running, found.requests = found.running + 1, found.requests + 1
        try:
            yield found.server
        finally:
            with self._changed:
                found.running -= 1
                self._changed.notify_all()

    def _free(self, backend: str, tried: set[str]) -> Upstream | None:
        there = [upstream for upstream in self._servers[backend] if upstream.up]
        if not there and self.files.backends[backend].waits:
            tried.clear()
            return None
        if not there:
            raise NoServer("model_not_up")
        left = [upstream for upstream in there if upstream.server.name not in tried]
        if not left:
            raise NoServer("overloaded")
        free = [upstream for upstream in left if not upstream.server.slots or upstream.running < upstream.server.slots]
        return min(free, key=lambda upstream: upstream.running, default=None)

    def force(self, backend: str, name: str, action: str) -> None:
        """Drain or return a server."""
        with self._changed:
            for upstream in self._servers.get(backend, ()):
                if upstream.server.name == name:
                    was, upstream.forced = upstream.forced, "" if action == operations.READY else action
                    # as in HAProxy, a server that leaves maintenance must soon pass a check
                    upstream.failures = FALL - 1 if was == operations.REST else upstream.failures
            self._changed.notify_all()

    def row(self, backend: str, name: str) -> dict[str, object]:
        """Return a server's state as its own host reads it."""
        found = next(server for server in self._servers[backend] if server.server.name == name)
        about = {"status": found.status, "running": found.running, "requests": found.requests}
        return {"backend": backend, "server": name, **about}

    def statistics(self) -> str:
        """Return `show stat` with the columns that are used."""
        rows = io.StringIO("# ")
        table = csv.writer(rows, lineterminator="\n")
        rows.seek(2)
        table.writerow(("pxname", "svname", "qcur", "scur", "stot", "hrsp_5xx", "status"))
        for name, servers in self._servers.items():
            for server in servers:
                table.writerow((name, server.server.name, 0, server.running, server.requests, 0, server.status))
            queued, status = self._queued[name], "UP" if self.up(name) else "DOWN"
            running, total = (sum(getattr(server, what) for server in servers) for what in ("running", "requests"))
            table.writerow((name, BACKEND, queued, running + queued, total, self.errors[name], status))
        return rows.getvalue()

    def states(self) -> str:
        """Return `show servers state` with the columns that are used."""
        rows = [f"{name} {server.server.name} {server.server.address} {server.admin_state} {server.server.port}\n"
                for name, servers in self._servers.items() for server in servers]  # fmt: skip
        return "".join(("1\n# ", " ".join(STATE_COLUMNS), "\n", *rows))

    def _check(self, backend: Backend, upstream: Upstream) -> None:
        while not self.ended.is_set():
            if upstream.forced != operations.REST:
                well = _well(backend, upstream.server)
                with self._changed:
                    upstream.failures = 0 if well else min(FALL, upstream.failures + 1)
                    self._changed.notify_all()
            soon_s = min(render.FAST_CHECK_S, self.files.check_s)
            self.ended.wait(soon_s if upstream.failures or upstream.forced else self.files.check_s)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it is sent to a server."""

    method: str
    path: str
    body: bytes
    kind: str = "application/json"


def asked(server: Server, key: str, sent: Sent, timeout_s: float) -> http.client.HTTPResponse:
    """Return a server's answer, with its body unread. Raises OSError or HTTPException. Closing it closes the connection."""
    link = http.client.HTTPConnection(server.address, server.port, timeout=timeout_s)
    headers = {"Content-Type": sent.kind, "Connection": "close"}
    try:
        link.request(
            sent.method,
            sent.path,
            sent.body or None,
            {**headers, **({"Authorization": f"Bearer {key}"} if key else {})},
        )
        return link.getresponse()
    except BaseException:
        link.close()
        raise


def _well(backend: Backend, server: Server) -> bool:
    path, body, expected = backend.check
    try:
        with asked(server, backend.key, Sent("POST", path, body.encode()), render.CHECK_S) as answer:
            return re.search(expected, answer.read(CHECK_BYTES).decode(errors="replace")) is not None
    except (OSError, http.client.HTTPException):
        return False


def _forced(drained: str) -> Mapping[tuple[str, str], str]:
    """Return the forced states saved before a reload, by backend and server name."""
    _, header, *rows = [*drained.splitlines(), "", ""]
    found = [dict(zip(header.removeprefix("# ").split(), row.split(), strict=False)) for row in rows if row]
    names = {str(number | more): name for name, number in FORCED.items() for more in (0, DISABLED)}
    return {(entry["be_name"], entry["srv_name"]): names.get(entry["srv_admin_state"], "") for entry in found}
