"""Access to a running gateway through its sockets: HAProxy's commands and state, and requests like those of clients."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.gateway import clients, statistics, usage
from sparkwright.gateway.listeners import PROOF_SOCKET, SOCKET
from sparkwright.host.gateway import place
from sparkwright.host.state import StateFolder
from sparkwright.transport import http
from sparkwright.transport.connection import Tls, TransportError, converse
from sparkwright.trust.bounds import json_of
from sparkwright.visible import first

#: limits of an answer to a command; a gateway with hundreds of servers sends less
ANSWER_S, LARGEST_BYTES = 5.0, 4 * 2**20
#: limit of the answer to a request that goes through the gateway as a client's
ANSWER_BYTES = 2**20
#: this process's open files, by number
OPEN = Path("/proc/self/fd")


def ask(sockets: Path, command: str, at: str = SOCKET) -> str:
    """Return the answer to a command; empty if there is none within ANSWER_S, or if it exceeds LARGEST_BYTES.

    Args:
        sockets: the folder of the sockets.
        at: the socket's name there.
    """
    with contextlib.suppress(OSError, TransportError), socket_path(sockets, at) as path:
        answer = converse(path, f"{command}\n".encode(), timeout_s=ANSWER_S, most_bytes=LARGEST_BYTES)
        return answer.decode(errors="replace")
    return ""


@contextlib.contextmanager
def socket_path(sockets: Path, name: str) -> Iterator[str]:
    """Yield a short path to a socket in this folder: a socket's path is limited to 107 bytes.

    Raises OSError if there is none, or if it is a link, which could lead to another program's socket.
    """
    if not OPEN.is_dir():  # not Linux: it is the sandbox, whose folder is the user's own
        with tempfile.TemporaryDirectory(prefix="sw") as short:
            Path(short, "s").symlink_to(sockets.absolute())
            yield f"{short}/s/{name}"
        return
    folder = os.open(sockets, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise FileNotFoundError(name)
        yield f"{OPEN}/{found}"
    finally:
        os.close(found)


def running_digest(sockets: Path) -> str:
    """Return the digest of the files that the running HAProxy was started with; empty if it is not running."""
    return _digest(_info(sockets))


def _info(sockets: Path) -> dict[str, str]:
    """Return what the running HAProxy reports about itself, by lower-case name; empty if it is not running."""
    rows = (line.partition(": ") for line in ask(sockets, "show info").splitlines())
    return {name.lower(): value.strip() for name, _, value in rows}


def _digest(info: Mapping[str, str]) -> str:
    return info.get("description", "").rpartition(" ")[2]


#: between the start of a process and the moment when it is recorded as verified, at least; HAProxy counts whole seconds
CLOCK_S = 2.0


def _restarted_s(info: Mapping[str, str], verified: Mapping[str, Any]) -> float | None:
    """Return how many seconds ago HAProxy was started again after it was verified; None if it was not, or if that is unknown."""
    uptime, since = info.get("uptime_sec", ""), verified.get("since")
    if not uptime.isdecimal() or not isinstance(since, int | float):
        return None
    return float(uptime) if time.time() - float(uptime) > since + CLOCK_S else None


def statistics_rows(sockets: Path) -> list[dict[str, str]]:
    """Return HAProxy's statistics, a row per frontend, backend and server; empty if they are malformed."""
    return statistics.table(ask(sockets, "show stat"))


@dataclass(frozen=True, slots=True)
class Door:
    """The endpoint at which a gateway of this host takes requests."""

    port: int
    tls: bool = False  #: the certificate's name is not checked: it is meant for clients
    sockets: Path | None = None  #: the folder of its sockets


@dataclass(frozen=True, slots=True)
class Answer:
    """A gateway's answer."""

    #: 0 without an answer; `error` has the reason
    status: int
    data: Any = None
    error: str = ""

    @property
    def message(self) -> str:
        """The error's message."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        text = about.get("message") if isinstance(about, dict) else about
        return self.error or (text if isinstance(text, str) else "") or f"status {self.status}"

    @property
    def code(self) -> str:
        """The error's code in the gateway's answer."""
        about = self.data.get("error") if isinstance(self.data, dict) else None
        return str(about.get("code") or "") if isinstance(about, dict) else ""


def request(at: Door, path: str, body: Any = None, *, key: str = "", timeout_s: float = 60) -> Answer:
    """Send a request, with its body as JSON, and return the answer. Never raises: a timeout is an answer with an error."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with _route(at) as route:
            answer = http.request(
                "POST" if body else "GET",
                f"{'https' if at.tls else 'http'}://127.0.0.1:{at.port}{path}",
                body=json.dumps(body).encode() if body else None,
                headers=headers,
                timeout_s=timeout_s,
                most_bytes=ANSWER_BYTES,
                route=route,
            )
    except TransportError as error:
        return Answer(0, error=str(error))
    try:
        return Answer(answer.status, json_of(answer.body))
    except ValueError:
        return Answer(answer.status)


@contextlib.contextmanager
def _route(at: Door) -> Iterator[http.Route]:
    """Yield the route through a socket that clients cannot saturate, or through the port if the gateway has no such socket."""
    tls = Tls(verify=False)
    with contextlib.ExitStack() as stack:
        unix = ""
        if at.sockets is not None:
            with contextlib.suppress(OSError):
                unix = stack.enter_context(socket_path(at.sockets, PROOF_SOCKET))
        yield http.Route(unix=unix, tls=tls)


def inspect(state: StateFolder) -> dict[str, Any]:
    """Return the state of a host's gateway; empty if none was verified and none is running.

    Args:
        state: the host's state folder.

    Returns:
        A dict of running, verified (HAProxy uses the files that were verified last), restarted_s (how many seconds ago it was
        started again after that, else None), models (see gateway/statistics.py), changed (names of files that differ from the
        verified ones), and clients (usage of clients with keys, see gateway/clients.py).
    """
    gateway = place.of(state)
    sockets, verified = place.current(gateway).sockets, place.last_in(gateway)
    rows = statistics_rows(sockets)
    if not rows and not verified:
        return {}
    info = _info(sockets) if rows else {}
    about = {
        "running": bool(rows),
        "verified": bool(rows) and _digest(info) == verified.get("digest"),
        "restarted_s": _restarted_s(info, verified),
    }
    proofs = (verified.get("proof") or {}).get("models") or {}
    models = [
        {**model, "on_demand": bool(proofs.get(model["model"], {}).get("on_demand"))}
        for model in statistics.models(rows)
    ]
    found = {**about, "changed": _changed(gateway, verified), "models": models}
    files = place.read(place.current(gateway).files, (clients.KEYS, clients.TOKENS))
    named = clients.names_in(files.get(clients.KEYS, ""))
    if not named:
        return found | {"clients": []}
    today = usage.FILE + time.strftime("%Y-%m-%d", time.gmtime())
    day = place.read(sockets, (today,)).get(today, "")
    table, most = ask(sockets, f"show table {clients.TABLE}"), files.get(clients.TOKENS, "")
    return found | {"clients": clients.used(table, day, most, named)}


def wrong(found: dict[str, Any]) -> str:
    """Return a sentence about the gateway's problem, or "". A model without a server is reported at that server."""
    if not found["running"]:
        return "the gateway is down"
    if found["changed"]:
        return f"files of the gateway differ from the verified ones: {first(found['changed'], 3)}"
    return "" if found["verified"] else "the gateway runs with a configuration that was not verified"


def _changed(gateway: StateFolder, verified: dict[str, Any]) -> list[str]:
    """Return the names of files that differ from the verified ones."""
    if not verified:
        return []
    wanted = place.read(gateway.path / place.GOOD / verified["digest"])
    there = place.read(place.current(gateway).files)
    return sorted(name for name in wanted.keys() | there.keys() if wanted and wanted.get(name) != there.get(name))
