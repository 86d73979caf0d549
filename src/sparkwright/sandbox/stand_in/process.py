"""A stand-in for HAProxy, where this machine has none: it routes as the files of the gateway say, and says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from threading import Thread
from typing import Any

from sparkwright.gateway import operations, render
from sparkwright.host.gateway import admin
from sparkwright.host.gateway.place import read as files_of
from sparkwright.sandbox.haproxy import FOLDER
from sparkwright.sandbox.serving.process import Process
from sparkwright.sandbox.stand_in import files
from sparkwright.sandbox.stand_in.routing import Routing

STARTED = "[NOTICE] haproxy is not installed on this machine: this is the sandbox's stand-in for it"


class StandIn(Process):
    """argv: what follows `haproxy`. Of those words it knows `-c` only."""

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
        try:
            server = self.bind("127.0.0.1", self.routing.files.port)
        except OSError as error:
            return self.last_words([f"[ALERT] cannot bind port {self.routing.files.port}: {error}"], 1)
        short = self._short()
        short.unlink(missing_ok=True)
        sockets = [self._folder / name for name in (render.SOCKET, render.MASTER_SOCKET)]
        try:
            with _Sockets(str(short), self) as listening:
                Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
                self.routing.start()
                server.start()
                for one in sockets:
                    one.unlink(missing_ok=True)
                    one.symlink_to(short)
                self.stopped.wait()
                listening.shutdown()
        finally:
            self.routing.ended.set()
            for one in sockets:
                if one.is_symlink() and one.readlink() == short:
                    one.unlink()
            short.unlink(missing_ok=True)
        return self._code

    def command(self, words: str) -> str:
        """The answer to a command of the admin socket."""
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

    def _short(self) -> Path:
        """Its socket, beside that of the pretend engine: a path has some 100 bytes at most, and the folder's may be longer."""
        above = (one for one in self._folder.resolve().parents if (one / "docker.sock").exists())
        return next(above, self._folder.resolve()) / "gateway.sock"

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
        """Raises Unread."""
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
        asked = self.rfile.readline(256).decode(errors="replace").strip()
        self.wfile.write(self.server.owner.command(asked).encode())
