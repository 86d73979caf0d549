"""Requests about earlier responses, and requests with the model in a form, through a real HAProxy."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.loopback import Answer, RunningGateway, build_model, serve_models
from tests.gateway.servers import DEADLINE_S, JsonHandler, LoopbackServer, needs_haproxy

pytestmark = needs_haproxy
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


class StoringServer(LoopbackServer):
    """A server that stores its responses; a stream continues when `go_on` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _StoringHandler)
        self.made = 0
        self.seen: list[bytes] = []


class _StoringHandler(JsonHandler):
    server: StoringServer

    def do_GET(self) -> None:
        self.send_content({"read": self.path, "from": self.server.name})

    def do_POST(self) -> None:
        if self.headers["Content-Type"].startswith("multipart"):
            self.server.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_content({"from": self.server.name})
            return
        body = self.read_json()
        if body.get("max_tokens") == 1:
            self.send_content({"choices": []})
            return
        self.server.made += 1
        name = f"resp_{self.server.name}{self.server.made:016d}"
        if not body.get("stream"):
            self.send_content({"id": name, "from": self.server.name, "path": self.path, "pad": "x" * 9000})
            return
        self.begin_stream()
        pending = json.dumps({"response": {"id": name, "pad": "x" * 60}})
        self.send_chunk(f"event: response.created\ndata: {pending}\n\n".encode())
        self.server.go_on.wait(DEADLINE_S)
        self.send_chunk(b"event: response.completed\ndata: {}\n\n")
        self.send_chunk(b"")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[StoringServer, StoringServer]]:
    with StoringServer("one") as one, StoringServer("two") as two:
        yield one, two


@pytest.fixture(scope="module")
def lab(
    servers: tuple[StoringServer, StoringServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    models = build_model("qwen", *servers), build_model("org/small", servers[1])
    with serve_models(tmp_path_factory.mktemp("gateway"), *models) as lab:
        yield lab


def respond(lab: RunningGateway, **body: Any) -> Answer:
    return lab.ask("POST", "/v1/responses", {"model": "qwen", "input": "hi", **body}, headers=JSON)


def test_a_response_is_read_and_cancelled_at_the_server_that_made_it(lab: RunningGateway) -> None:
    created = [respond(lab).json for _ in range(6)]
    assert {item["from"] for item in created} == {"one", "two"}
    for item in created:
        path = f"/v1/responses/{item['id']}"
        assert lab.ask("GET", path).json == {"read": path, "from": item["from"]}
        assert lab.ask("POST", f"{path}/cancel", {}, headers=JSON).json["from"] == item["from"]


def test_a_response_with_a_previous_response_goes_to_the_same_server(lab: RunningGateway) -> None:
    before = respond(lab).json
    assert {respond(lab, previous_response_id=before["id"]).json["from"] for _ in range(4)} == {before["from"]}


def test_a_stream_is_not_buffered_until_the_id_of_the_response_is_known(
    lab: RunningGateway, servers: tuple[StoringServer, StoringServer]
) -> None:
    response = lab.begin_stream("/v1/responses", model="qwen", input="hi")
    first = response.read1()  # the server continues only after this part has arrived
    name = re.search(rb"resp_(one|two)\d+", first)
    assert name is not None
    assert lab.ask("GET", f"/v1/responses/{name[0].decode()}").json["from"] == name[1].decode()
    for server in servers:
        server.go_on.set()
    assert response.read().endswith(b"data: {}\n\n")


def test_an_unknown_response_and_a_wrong_method_are_refused(lab: RunningGateway) -> None:
    assert lab.ask("GET", "/v1/responses/resp_ffffffffffffffff").error == (404, "response_not_found")
    deleted = lab.ask("DELETE", "/v1/responses/resp_ffffffffffffffff")
    assert (deleted.status, deleted.headers["allow"], deleted.json["error"]["message"]) == (405, "GET", "Use GET.")
    below = lab.ask("GET", "/v1/responses/resp_1/input_items")
    assert below.status == 404 and "/v1/responses/{id}/cancel" in below.json["error"]["message"]
    assert lab.ask("GET", "/v1/responses/resp_1", key=None).status == 401


def recording_form(name: str, *, first: bool) -> bytes:
    """Return a form with a recording that contains null bytes, and the model before or after it."""
    file = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\x00\xff' + bytes(300_000)
    field = f'Content-Disposition: form-data; name="model"\r\n\r\n{name}'.encode()
    parts = (field, file) if first else (file, field)
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"


@pytest.mark.parametrize("first", [True, False], ids=["model first", "model last"])
@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_the_model_in_a_form_selects_the_server(
    lab: RunningGateway, servers: tuple[StoringServer, StoringServer], path: str, first: bool
) -> None:
    body = recording_form("org/small", first=first)
    assert lab.ask("POST", path, body, headers=FORM).json["from"] == "two"
    assert servers[1].seen[-1] == body
    assert lab.ask("POST", path, recording_form("nothing", first=first), headers=FORM).error == (404, "model_not_found")


@pytest.mark.parametrize(
    "body",
    [b"", b"--x\r\n", b'name="model"', b'name="model"\r\n\r\n' + b"m" * 400 + b"\r\n"],
    ids=["empty", "boundary only", "field without value", "long name"],
)
def test_a_form_without_a_model_is_refused_with_a_sentence(lab: RunningGateway, body: bytes) -> None:
    answer = lab.ask("POST", "/v1/audio/transcriptions", body, headers=FORM)
    assert (answer.status, answer.json["error"]["message"]) == (400, "The gateway found no field `model` in the form.")
