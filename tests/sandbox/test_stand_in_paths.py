"""The sandbox's stand-in routes the same paths as HAProxy, including those of responses and forms."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwright.gateway import answers, clients, render
from sparkwright.gateway.model import Client
from sparkwright.sandbox.stand_in import files
from sparkwright.sandbox.stand_in.api import GatewayApi
from sparkwright.sandbox.stand_in.router import Routing
from sparkwright.sandbox.web import Server
from tests.gateway.loopback import KEY, Answer, Running, gateway, key_of, model
from tests.gateway.test_responses import FORM, JSON, Keeper, form
from tests.remote.sshd import free_port


class StandIn(Running):
    """A client of the stand-in with the methods of the client of HAProxy."""

    def __init__(self, port: int) -> None:
        self.gateway, self.held = SimpleNamespace(port=port), []  # type: ignore[assignment]

    def respond(self, **body: Any) -> Answer:
        return self.ask("POST", "/v1/responses", {"model": "qwen", "input": "hi", **body}, **JSON)


@pytest.fixture(scope="module")
def stand_in() -> Iterator[StandIn]:
    keepers: Any = [Keeper("one"), Keeper("two")]
    made = gateway(model("qwen", *keepers), model("org/small", keepers[1]))
    hashed = hashlib.sha256(KEY.encode()).hexdigest()
    routing = Routing(files.read({**render.files(made), render.CLIENT_KEYS: f"{hashed}\n"}), "")
    owner = SimpleNamespace(routing=routing, stopped=threading.Event())
    server = Server(free_port(), GatewayApi, owner)
    server.start()
    routing.start()
    found = StandIn(server.port)
    found.up("qwen", "org/small")
    yield found
    routing.ended.set()
    server.stop()
    for keeper in keepers:
        keeper.shutdown()


def test_a_response_is_asked_of_the_server_that_made_it(stand_in: StandIn) -> None:
    made = [stand_in.respond().json for _ in range(4)]
    assert [stand_in.ask("GET", f"/v1/responses/{item['id']}").json["from"] for item in made] == [
        item["from"] for item in made
    ]
    unknown = stand_in.ask("GET", "/v1/responses/resp_ffffffffffffffff")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "response_not_found")


def test_a_form_is_routed_by_its_field(stand_in: StandIn) -> None:
    assert (
        stand_in.ask("POST", "/v1/audio/transcriptions", form("org/small", first=False), **FORM).json["from"] == "two"
    )
    refused = stand_in.ask("POST", "/v1/audio/transcriptions", b"--x\r\n", **FORM)
    assert (refused.status, refused.json["error"]["message"]) == (400, answers.NO_FIELD)


def test_another_path_is_told_those_that_are_routed(stand_in: StandIn) -> None:
    refused = stand_in.ask("POST", "/v1/load_lora_adapter", {}, **JSON)
    assert refused.status == 404
    assert "/v1/messages/count_tokens" in json.dumps(refused.json) and "/v1/responses/{id}" in json.dumps(refused.json)


def test_the_keys_of_clients_are_taken_too() -> None:
    made = gateway(model("qwen"), named=(Client("alice"),))
    hashed = {
        name: hashlib.sha256(key.encode()).hexdigest() for name, key in (("all", KEY), ("alice", key_of("alice")))
    }
    kept = {render.CLIENT_KEYS: f"{hashed['all']}\n", clients.KEYS: clients.keys({"alice": hashed["alice"]})}
    assert files.read({**render.files(made), **kept}).keys == frozenset(hashed.values())
