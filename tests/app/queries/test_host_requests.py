"""Hosts' answers about images: the module's own answer is accepted, and invalid ones are refused."""

import copy
import json
from typing import Any

import pytest

from sparkwright.app.queries import host_requests
from sparkwright.errors import Failed
from sparkwright.modules.image import image_transfer as transfer
from sparkwright.protocol.container import DOCKER_OPTIONS
from tests.fuzz.harness import damaged_values, feed
from tests.modules.context import RecordingContext

ID = "sha256:" + "a" * 64
LAYER = "sha256:" + "b" * 64


class FakeApi:
    """An engine with one image."""

    def images(self) -> list[dict[str, Any]]:
        return [{"Id": ID, "RepoTags": ["a/b:c"]}, {"Id": LAYER, "RepoTags": None}]

    def info(self) -> dict[str, Any]:
        return {"DockerRootDir": "/"}

    def inspect_image(self, name: str) -> dict[str, Any]:
        attrs: dict[str, Any] = {"Id": ID, "RepoTags": ["a/b:c"], "RepoDigests": [f"a/b@{LAYER}"], "Size": 7}
        return {**attrs, "Os": "linux", "Architecture": "arm64", "RootFS": {"Layers": [LAYER]}}


class FakeClient:
    api = FakeApi()


@pytest.fixture
def answer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the module's own answer, from an engine that has the image."""
    context = RecordingContext(tmp_path)
    monkeypatch.setattr(context, "docker", lambda: FakeClient())
    data = transfer.InspectImage().run(transfer.InspectImage.Args("a/b:c"), context).data
    return dict(json.loads(json.dumps(data)))


def test_what_look_image_says_is_taken_as_it_is(answer: dict[str, Any]) -> None:
    assert answer["present"]
    assert host_requests.validate_answer("inspect_image", copy.deepcopy(answer), host="spark1") == answer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "--force"),
        ("id", "x; id"),
        ("impostor", 7),
        ("digests", ["sha256:x"]),
        ("addresses", ["-oProxyCommand=id"]),
        ("names", None),
        ("names", {"tags": {"a:b": "x"}, "nameless": [], "at": "0"}),
        ("names", {"tags": {}, "nameless": [7], "at": "0"}),
        ("names", {"tags": {}, "nameless": [], "at": 5}),
    ],
)
def test_what_is_no_answer_is_a_sentence_with_the_host(answer: dict[str, Any], field: str, value: Any) -> None:
    with pytest.raises(Failed, match=f"its answer can't be used: inspect_image.{field}") as error:
        host_requests.validate_answer("inspect_image", {**answer, field: value}, host="spark1")
    assert error.value.where == "spark1"


def test_any_answer(answer: dict[str, Any]) -> None:
    feed(lambda found: host_requests.validate_answer("inspect_image", found, host="spark1"), damaged_values([answer]))


# A host that returns an invalid answer about its models is the only one that fails, with a readable message.


FOLDER = {
    "dir": "/home/u/m",
    "id": "a/b",
    "commit": "a" * 40,
    "files": 1,
    "size_bytes": 1,
    "changed": [],
    "used_by": ["x"],
}


def test_a_valid_answer_is_returned_unchanged() -> None:
    assert host_requests.validate_answer("models", {"models": [FOLDER]}, host="spark1") == {"models": [FOLDER]}


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({}, "models has no models"),
        ([], "models is "),
        ({"models": {}}, r"models\.models is "),
        ({"models": [7]}, r"models\.models\[0\] is "),
        ({"models": [{**FOLDER, "size_bytes": "1"}]}, r"models\.models\[0\]\.size_bytes is "),
        ({"models": [{**FOLDER, "size_bytes": -1}]}, r"models\.models\[0\]\.size_bytes is "),
        ({"models": [{**FOLDER, "used_by": [None]}]}, r"models\.models\[0\]\.used_by\[0\] is "),
    ],
)
def test_an_invalid_answer_fails_with_the_invalid_place(found: Any, place: str) -> None:
    with pytest.raises(Failed, match=f"its answer can't be used: {place}") as error:
        host_requests.validate_answer("models", found, host="spark1")
    assert error.value.where == "spark1"


DIAGNOSIS = {
    "schema": 1,
    "state": "slow",
    "summary": "slow: 5.7 of 47 tok/s",
    "fix": "",
    "exit": 1,
    "sandbox": True,
    "tok_per_s": 5.7,
    "expected_tok_per_s": None,
    "expected_by": None,
    "container": {"name": "a"},
    "gpu": {},
    "causes": [{"cause": "the GPU is too hot", "verdict": "found", "evidence": "96 C", "fix": ""}],
}


def test_no_answer_raises_anything_but_failed() -> None:
    verified = {"dir": "/m", "wrong": ["a"], "files": 3, "size_bytes": 7}
    removed = {**verified, "freed_bytes": 1, "left": 0}
    for module, found in {
        "models": {"models": [FOLDER, FOLDER]},
        "verify_model": verified,
        "remove_model": removed,
        "diagnose": DIAGNOSIS,
    }.items():
        feed(
            lambda found, module=module: host_requests.validate_answer(module, found, host="spark1"),
            damaged_values([found]),
        )


SERVER = {
    "name": "vllm",
    "models": {"m": 4096, "n": None},
    "port": 8000,
    "loopback": True,
    "server_key": False,
    "image": "a/b:v1",
}


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"port": "8000:x;$(id)"}, "port"),
        ({"port": 0}, "port"),
        ({"models": ["m"]}, "models"),
        ({"models": {"m": "4k"}}, "models.m"),
        ({"models": {"m": 0}}, "models.m"),
        ({"loopback": None}, "loopback"),
    ],
)
def test_an_invalid_answer_about_a_server_yields_no_client_settings(wrong: dict[str, Any], place: str) -> None:
    assert host_requests.validate_answer("inspect_server", SERVER, host="spark1") == SERVER
    with pytest.raises(Failed, match=f"its answer can't be used: inspect_server.{place}"):
        host_requests.validate_answer("inspect_server", {**SERVER, **wrong}, host="spark1")


SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("name", "image", "network"), ""),
    "entrypoint": None,
    **{key: [] for key in ("program", "command", "ports", "volumes")},
    "env": {},
    "running": True,
}


@pytest.mark.parametrize("option", ["restart", *DOCKER_OPTIONS])
def test_an_option_of_another_type_yields_no_recipe(option: str) -> None:
    """The checks of the options' values, which an import calls next, expect the recipe's types."""
    answer = {**SETTINGS, "options": {option: [{}]}}
    with pytest.raises(Failed, match=f"its answer can't be used: container_settings.options.{option}"):
        host_requests.validate_answer("container_settings", answer, host="spark1")
