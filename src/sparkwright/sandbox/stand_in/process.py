"""A stand-in for HAProxy where it is not installed. It routes by the gateway's files, and identifies itself as a stand-in."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import Any

from sparkwright.gateway import listeners, operations
from sparkwright.host.gateway import admin, place
from sparkwright.host.gateway.place import read as files_of
from sparkwright.sandbox.haproxy import FOLDER
from sparkwright.sandbox.serving.process import Process
from sparkwright.sandbox.stand_in import files
from sparkwright.sandbox.stand_in.api import ControlApi, GatewayApi
from sparkwright.sandbox.stand_in.router import Routing
from sparkwright.sandbox.web import Server, UnixServer

LOOPBACK = "127.0.0.1"
STARTED = "[NOTICE] haproxy is not installed on this machine: this is the sandbox's stand-in for it"


class StandIn(Process):
    """The process of the stand-in.

    `argv` is the command line after `haproxy`, of which only `-c` has an effect.
    """

    usual_holder = "haproxy"

    def serve(self) -> int:
        self._folder = self._folder_of(FOLDER)
        try:
            self.routing = self._read()
        except files.Unread as why:
            return self.last_words([f"[ALERT] {why}"], 1)
        self.log(STARTED)
        if "-c" in self._argv:
            return 0
        with contextlib.ExitStack() as stack:
            try:
                servers = self._listening(stack)
            except OSError as error:
                return self.last_words([f"[ALERT] cannot bind: {error}"], 1)
            self.routing.start()
            for server in servers:
                server.start()
            self.stopped.wait()
            self.routing.ended.set()
        return self._code

    def _listening(self, stack: contextlib.ExitStack) -> list[Server | UnixServer]:
        """Bind the ports and the sockets, until the stack is closed. Raises OSError if another program uses a port."""
        clients = self.bind(LOOPBACK, self.routing.files.port)
        control = Server(self.routing.files.control_port, ControlApi, self, host=str(clients.server_address[0]))
        stack.callback(control.stop)
        folder = stack.enter_context(_short(self._folder.with_name(place.SOCKETS)))
        proof = UnixServer(folder / listeners.PROOF_SOCKET, GatewayApi, self)
        stack.callback(_end, proof)
        for name in (listeners.SOCKET, listeners.MASTER_SOCKET):
            (folder / name).unlink(missing_ok=True)
            listener = _Sockets(str(folder / name), self)
            stack.callback(_end, listener)
            Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return [clients, control, proof]

    def command(self, words: str) -> str:
        """Return the answer to a command of the admin socket."""
        match words:
            case "show info":
                return f"Name: {admin.STAND_IN}\nDescription: {self.routing.files.description}\n"
            case "show stat":
                return self.routing.statistics()
            case "show servers state":
                return self.routing.states()
            case "reload":
                return self._reload()
        return "Unknown command\n"

    def stopping(self) -> Sequence[str]:
        return []

    def dying(self) -> Sequence[str]:
        return []

    def crashing(self) -> Sequence[str]:
        return ["[ALERT] (1) : the stand-in was ended"]

    def _reload(self) -> str:
        try:
            found = self._read()
        except files.Unread as why:
            self.log(f"[ALERT] {why}")
            return "Success=0\n"
        found.start()
        before, self.routing = self.routing, found
        before.ended.set()
        return "Success=1\n"

    def _read(self) -> Routing:
        """Return the routing of the current files. Raises Unread."""
        drained = self._folder / operations.STATES
        return Routing(files.read(files_of(self._folder)), drained.read_text() if drained.is_file() else "")


class _Sockets(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, owner: StandIn) -> None:
        self.owner = owner
        super().__init__(path, _Asked)


class _Asked(StreamRequestHandler):
    server: Any

    def handle(self) -> None:
        command = self.rfile.readline(256).decode(errors="replace").strip()
        self.wfile.write(self.server.owner.command(command).encode())


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """Yield a short path to a folder, for sockets, whose paths have some 100 bytes at most.

    Without /proc (macOS) the sockets are in a temporary folder, with links to them in the original one.
    """
    if admin.OPEN.is_dir():
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield admin.OPEN / str(opened)
        finally:
            os.close(opened)
        return
    with tempfile.TemporaryDirectory(prefix="sw") as short:
        for name in (listeners.SOCKET, listeners.MASTER_SOCKET, listeners.PROOF_SOCKET):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(Path(short, name))
        yield Path(short)


def _end(server: UnixStreamServer) -> None:
    server.shutdown()
    server.server_close()
