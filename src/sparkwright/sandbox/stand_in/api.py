"""The HTTP API of the stand-in. Key, path, method and length are checked before the body is read."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
from collections.abc import Collection, Iterator
from threading import Event
from typing import Protocol

from sparkwright.engines import api_paths
from sparkwright.gateway import answers, operations, render, requests
from sparkwright.sandbox.stand_in.files import Server
from sparkwright.sandbox.stand_in.router import NoServer, Routing, Sent, asked
from sparkwright.sandbox.web import Handler

#: in an answer, and in a form
RESPONSE = re.compile(rb'"id": ?"(resp_[A-Za-z0-9_-]+)"')
FIELD = re.compile(rb'name="model".*?\r\n\r\n([^\r\n]{1,200})\r\n', re.S)


class Owner(Protocol):
    """The process that owns the handler."""

    routing: Routing
    stopped: Event


class GatewayApi(Handler):
    """The handler of the requests of one connection. Reloaded files apply from the next request."""

    owner: Owner

    def parse_request(self) -> bool:
        """Return True if the body is to be read. A refused request has been answered already."""
        self.owner = self.server.owner  # type: ignore[attr-defined]
        self.routing: Routing = self.owner.routing
        if self.owner.stopped.is_set() or not super().parse_request():
            self.close_connection = True
            return False
        refused = self._refused()
        if refused:
            self.close_connection = True
            self.error(*refused)
        return not refused

    def _refused(self) -> tuple[int, str, str] | None:
        files, path, hashed = self.routing.files, self.path.partition("?")[0], self.key_hash()
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal():
            return 400, *answers.OWN[400]
        if path == render.HEALTH:
            return None
        if files.keys is not None and hashed not in files.keys:
            return 401, answers.NO_KEY, "invalid_api_key"
        if path == render.MODELS:
            return None
        if path not in files.paths and not re.fullmatch(files.kept or "(?!)", path):
            return 404, files.unknown_path, "unknown_url"
        wanted = "GET" if re.fullmatch(files.read or "(?!)", path) else "POST"
        if self.command != wanted:
            return 405, f"Use {wanted}.", "method_not_allowed"
        return self._too_large() if int(length) > files.body_bytes else None

    def route(self) -> None:
        path = self.path.partition("?")[0]
        if path == render.HEALTH:
            self.reply(200, b"ok", {"Content-Type": "text/plain"})
        elif path == render.MODELS:
            up = (backend for name, backend in self.routing.files.backends.items() if self.routing.up(name))
            self.reply(200, {"object": "list", "data": [row for backend in up for row in backend.rows]})
        elif len(self.raw) > self.routing.files.body_bytes:
            self.error(*self._too_large())
        else:
            self._pass_on()

    def key_hash(self) -> str:
        """Return the SHA-256 of the request's key, or an empty string."""
        scheme, _, key = self.headers.get("Authorization", "").partition(" ")
        key = key if scheme.lower() == "bearer" else self.headers.get(render.API_KEY, "")
        return hashlib.sha256(key.encode()).hexdigest() if key else ""

    def _pass_on(self) -> None:
        path = self.path.partition("?")[0]
        if path not in self.routing.files.paths:
            self._of_response(path.removeprefix(api_paths.RESPONSES).split("/")[1])
            return
        form = path in self.routing.files.forms
        model = _field(self.raw) if form else _named(self.body())
        if model is None:
            self.error(400, answers.NO_FIELD if form else answers.NO_MODEL, "model_missing")
            return
        backend = self.routing.files.models.get(model)
        if backend is None:
            self.error(404, answers.UNKNOWN_MODEL, "model_not_found")
            return
        try:
            self._ask(backend)
        except NoServer as no:
            self.error(503, answers.NOT_UP if no.code == "model_not_up" else answers.OWN[503][0], no.code)
            self.routing.errors[backend] += 1

    def _of_response(self, name: str) -> None:
        """Forward a request to the server that made a response."""
        backend, server = self.routing.makers.get(name, ("", ""))
        if not backend:
            self.error(404, requests.UNKNOWN_RESPONSE, "response_not_found")
            return
        others = {server.name for server in self.routing.files.backends[backend].servers} - {server}
        try:
            self._ask(backend, others)
        except NoServer as no:
            self.error(503, answers.NOT_UP, no.code)

    def _ask(self, backend: str, others: Collection[str] = ()) -> None:
        """Try one server after another until one answers. Raises NoServer.

        Args:
            backend: name of the backend.
            others: servers that are not tried.
        """
        files, tried = self.routing.files, {*others}
        while True:
            with self.routing.taken(backend, tried) as server:
                try:
                    answer = self._asked(server, files.backends[backend].key)
                except TimeoutError:
                    self.error(504, *answers.OWN[504])
                    return
                except (OSError, http.client.HTTPException):
                    tried.add(server.name)
                    continue
                with answer:
                    self._answer(answer, (backend, server.name))
                return

    def _asked(self, server: Server, key: str) -> http.client.HTTPResponse:
        kind = self.headers.get("Content-Type", "application/json")
        about = Sent(self.command, self.path, self.raw, kind)
        return asked(server, key, about, self.routing.files.answer_s)

    def _answer(self, answer: http.client.HTTPResponse, maker: tuple[str, str]) -> None:
        """Forward an answer as it arrives. If its server ends in the middle of it, so does the connection."""
        kind = answer.getheader("Content-Type") or "application/json"
        try:
            if answer.status == 200 and answer.length is None:
                self.stream(self._parts(answer, maker), kind)
            else:
                payload = answer.read()
                self._remember(payload, maker)
                self.reply(answer.status, payload, {"Content-Type": kind})
        except http.client.HTTPException:
            self.close_connection = True

    def _remember(self, begin: bytes, maker: tuple[str, str]) -> None:
        """Record the server that made a response, from the beginning of its answer."""
        if self.path.partition("?")[0] == api_paths.RESPONSES and (found := RESPONSE.search(begin)):
            self.routing.makers[found[1].decode()] = maker

    def _parts(self, answer: http.client.HTTPResponse, maker: tuple[str, str]) -> Iterator[bytes]:
        while part := answer.read1(65536):
            self._remember(part, maker)
            if self.owner.stopped.is_set():
                raise ConnectionResetError
            yield part

    def _too_large(self) -> tuple[int, str, str]:
        return 413, answers.too_large(self.routing.files.body_bytes), "request_too_large"

    def error(self, status: int, message: str, code: str) -> None:
        name, _, value = answers.HEADERS.get(status, "").removeprefix("hdr ").partition(" ")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.reply(status, json.loads(answers.body(status, message, code)), {name: value} if name else {})


def _named(body: object) -> str | None:
    """Return the model of a JSON body."""
    found = body.get("model") if isinstance(body, dict) else None
    return found if isinstance(found, str) else None


def _field(form: bytes) -> str | None:
    """Return the model of a multipart form."""
    found = FIELD.search(form)
    return found[1].decode(errors="replace") if found else None


class ControlApi(GatewayApi):
    """The handler of the port for the gateway's hosts."""

    def _refused(self) -> tuple[int, str, str] | None:
        files = self.routing.files
        operator = files.operators.get(self.key_hash(), "")
        if not operator:
            return 401, "This is for the gateway's own hosts.", "invalid_operator_key"
        self.operation = files.operations.get(f"{operator}:{self.command}:{self.path}", "")
        body = self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers
        if not self.operation or body:
            return 403, "A host reads, drains and returns its own servers only.", "not_allowed"
        return None

    def route(self) -> None:
        action, *names = self.operation.split()
        servers = [tuple(name.split("/", 1)) for name in names]
        if action in operations.METHODS:
            for backend, server in servers:
                self.routing.force(backend, server, action)
        self.reply(200, {"servers": [self.routing.row(backend, server) for backend, server in servers]})
