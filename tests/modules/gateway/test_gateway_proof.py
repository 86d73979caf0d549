"""The verification of a gateway by its answers: which models count as verified, and what the message says of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import answers, wake
from sparkwright.modules.gateway import gateway_files
from sparkwright.modules.gateway.gateway_files import GatewayProof
from tests.gateway.servers import JsonHandler, LoopbackServer
from tests.modules.context import RecordingContext

ANSWER = {"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 1}}


class _Handler(JsonHandler):
    server: "ListedModels"

    def do_GET(self) -> None:
        self.send_content({"data": [{"id": name} for name in self.server.names]})

    def do_POST(self) -> None:
        asleep = self.read_json()["model"] in self.server.asleep
        self.send_content(
            json.loads(answers.error_body(503, "asleep", wake.ERROR_CODE)) if asleep else ANSWER, 503 if asleep else 200
        )


class ListedModels(LoopbackServer):
    """A gateway that lists these models; those asleep fell asleep after it listed them."""

    def __init__(self, *names: str, asleep: tuple[str, ...] = ()) -> None:
        super().__init__("box", _Handler)
        self.names, self.asleep = names, asleep


def prove(folder: Path, gateway: ListedModels, *on_demand: str) -> Any:
    models = {
        name: {"task": "generate", "body": {"model": name, "max_tokens": 1}, "on_demand": name in on_demand}
        for name in gateway.names
    }
    return GatewayProof().run(GatewayProof.Args(gateway.port, models), RecordingContext(folder))


def test_each_name_that_returned_a_token_is_named(tmp_path: Path) -> None:
    """A model can have several names, so their number is not that of the models."""
    with ListedModels("qwen", "coder") as gateway:
        assert prove(tmp_path, gateway).msg == "qwen, coder returned a token"


def test_a_model_that_falls_asleep_meanwhile_does_not_fail_the_deploy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_files, "ASLEEP_TIMEOUT_S", 0.0)
    with ListedModels("qwen", "small", asleep=("small",)) as gateway:
        result = prove(tmp_path, gateway, "small")
    assert (result.msg, result.data["not_up"]) == ("qwen returned a token; asleep: small", ["small"])
