"""Requests about earlier responses, and requests whose model is in a form, through a real HAProxy."""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.gateway.loopback import DEADLINE_S, KEY, Answer, RunningGateway, build_gateway, build_model, run_gateway

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
NAMES = ("one", "two")
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


class StoringServer(ThreadingHTTPServer):
    """A server that stores its responses; a streamed one continues when `go_on` is set."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _StoringHandler)
        self.name, self.go_on, self.made = name, threading.Event(), 0
        self.seen: list[bytes] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _StoringHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StoringServer

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"read": self.path, "from": self.server.name})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"].startswith("multipart"):
            self.server.seen.append(raw)
            self._json({"from": self.server.name})
            return
        body = json.loads(raw)
        if body.get("max_tokens") == 1:
            self._json({"choices": []})
            return
        self.server.made += 1
        name = f"resp_{self.server.name}{self.server.made:016d}"
        if not body.get("stream"):
            self._json({"id": name, "from": self.server.name, "path": self.path, "pad": "x" * 9000})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pending = json.dumps({"response": {"id": name, "pad": "x" * 60}})
        self._chunk(f"event: response.created\ndata: {pending}\n\n".encode())
        self.server.go_on.wait(DEADLINE_S)
        self._chunk(b"event: response.completed\ndata: {}\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, part: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.flush()

    def _json(self, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture(scope="module")
def keepers() -> Iterator[dict[str, StoringServer]]:
    servers = {name: StoringServer(name) for name in NAMES}
    yield servers
    for item in servers.values():
        item.shutdown()


@pytest.fixture(scope="module")
def lab(keepers: dict[str, StoringServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    servers: Any = keepers
    rendered = build_gateway(
        build_model("qwen", servers["one"], servers["two"]), build_model("org/small", servers["two"])
    )
    with run_gateway(tmp_path_factory.mktemp("gateway"), rendered) as running_gateway:
        running_gateway.up("qwen", "org/small")
        yield running_gateway


def respond(lab: RunningGateway, **body: Any) -> Answer:
    return lab.ask("POST", "/v1/responses", {"model": "qwen", "input": "hi", **body}, **JSON)


def test_a_response_is_read_and_cancelled_at_the_server_that_made_it(lab: RunningGateway) -> None:
    created = [respond(lab).json for _ in range(6)]
    assert {item["from"] for item in created} == set(NAMES)
    for item in created:
        path = f"/v1/responses/{item['id']}"
        assert lab.ask("GET", path).json == {"read": path, "from": item["from"]}
        assert lab.ask("POST", f"{path}/cancel", {}, **JSON).json["from"] == item["from"]


def test_a_response_that_follows_another_goes_to_its_server(lab: RunningGateway) -> None:
    before = respond(lab).json
    assert {respond(lab, previous_response_id=before["id"]).json["from"] for _ in range(4)} == {before["from"]}


def test_a_stream_is_not_held_back_for_its_name(lab: RunningGateway, keepers: dict[str, StoringServer]) -> None:
    connection = lab.connection()
    body = json.dumps({"model": "qwen", "input": "hi", "stream": True})
    connection.request("POST", "/v1/responses", body, {"Authorization": f"Bearer {KEY}", **JSON})
    answer = connection.getresponse()
    first = answer.read1()  # the server goes on when this is here
    name = re.search(rb"resp_(one|two)\d+", first)
    assert name is not None
    assert lab.ask("GET", f"/v1/responses/{name[0].decode()}").json["from"] == name[1].decode()
    for keeper in keepers.values():
        keeper.go_on.set()
    assert answer.read().endswith(b"data: {}\n\n")


def test_a_response_of_nobody_and_another_method_are_refused(lab: RunningGateway) -> None:
    unknown = lab.ask("GET", "/v1/responses/resp_ffffffffffffffff")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "response_not_found")
    deleted = lab.ask("DELETE", "/v1/responses/resp_ffffffffffffffff")
    assert (deleted.status, deleted.headers["allow"], deleted.json["error"]["message"]) == (405, "GET", "Use GET.")
    below = lab.ask("GET", "/v1/responses/resp_1/input_items")
    assert below.status == 404 and "/v1/responses/{id}/cancel" in below.json["error"]["message"]
    assert lab.ask("GET", "/v1/responses/resp_1", key=None).status == 401


def recording_form(name: str, *, first: bool) -> bytes:
    """Return a form with a recording that contains zeros, and the model before or after it."""
    file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff' + bytes(300_000)
    field = f'Content-Disposition: form-data; name="model"\r\n\r\n{name}'.encode()
    parts = (field, file) if first else (file, field)
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_a_recording_goes_by_the_model_in_its_form(
    lab: RunningGateway, keepers: dict[str, StoringServer], path: str, first: bool
) -> None:
    body = recording_form("org/small", first=first)
    assert lab.ask("POST", path, body, **FORM).json["from"] == "two"
    assert keepers["two"].seen[-1] == body
    unknown = lab.ask("POST", path, recording_form("nothing", first=first), **FORM)
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("body", [b"", b"--x\r\n", b'name="model"', b'name="model"\r\n\r\n' + b"m" * 400 + b"\r\n"])
def test_a_form_without_a_model_is_refused_with_a_sentence(lab: RunningGateway, body: bytes) -> None:
    answer = lab.ask("POST", "/v1/audio/transcriptions", body, **FORM)
    assert (answer.status, answer.json["error"]["message"]) == (400, "The gateway found no field `model` in the form.")
