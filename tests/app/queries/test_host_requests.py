"""Hosts' answers: valid ones are returned unchanged, and invalid ones refused with the host and the place."""

import copy
import json
from pathlib import Path
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


def assert_invalid(module: str, answer: Any, place: str) -> None:
    with pytest.raises(Failed, match=f"its answer can't be used: {place}") as error:
        host_requests.validate_answer(module, answer, host="spark1")
    assert error.value.where == "spark1"


@pytest.fixture
def image_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the module's own answer, from an engine that has the image."""
    context = RecordingContext(tmp_path)
    monkeypatch.setattr(context, "docker", lambda: FakeClient())
    data = transfer.InspectImage().run(transfer.InspectImage.Args("a/b:c"), context).data
    return dict(json.loads(json.dumps(data)))


def test_answer_of_the_image_module_is_returned_unchanged(image_answer: dict[str, Any]) -> None:
    assert image_answer["present"]
    assert host_requests.validate_answer("inspect_image", copy.deepcopy(image_answer), host="spark1") == image_answer


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
def test_invalid_answer_about_an_image_is_refused(image_answer: dict[str, Any], field: str, value: Any) -> None:
    assert_invalid("inspect_image", {**image_answer, field: value}, f"inspect_image.{field}")


FOLDER = {
    "dir": "/home/u/m", "id": "a/b", "commit": "a" * 40, "files": 1, "size_bytes": 1,
    "changed": [], "used_by": ["x"],
}  # fmt: skip
VERIFIED = {"dir": "/m", "wrong": ["a"], "files": 3, "size_bytes": 7}
DIAGNOSIS = {
    "schema": 1, "state": "slow", "summary": "slow: 5.7 of 47 tok/s", "fix": "", "exit": 1, "sandbox": True,
    "tok_per_s": 5.7, "expected_tok_per_s": None, "expected_by": None, "container": {"name": "a"}, "gpu": {},
    "causes": [{"cause": "the GPU is too hot", "verdict": "found", "evidence": "96 C", "fix": ""}],
}  # fmt: skip
SERVER = {
    "name": "vllm", "models": {"m": 4096, "n": None}, "port": 8000,
    "loopback": True, "server_key": False, "image": "a/b:v1",
}  # fmt: skip
VALID_ANSWERS: dict[str, dict[str, Any]] = {
    "models": {"models": [FOLDER, FOLDER]},
    "verify_model": VERIFIED,
    "remove_model": {**VERIFIED, "freed_bytes": 1, "left": 0},
    "diagnose": DIAGNOSIS,
    "inspect_server": SERVER,
}


@pytest.mark.parametrize("module", VALID_ANSWERS)
def test_valid_answer_is_returned_unchanged_and_a_damaged_one_at_most_refused(module: str) -> None:
    answer = VALID_ANSWERS[module]
    assert host_requests.validate_answer(module, copy.deepcopy(answer), host="spark1") == answer
    feed(lambda damaged: host_requests.validate_answer(module, damaged, host="spark1"), damaged_values([answer]))


def test_damaged_answer_about_an_image_is_at_most_refused(image_answer: dict[str, Any]) -> None:
    answers = damaged_values([image_answer])
    feed(lambda damaged: host_requests.validate_answer("inspect_image", damaged, host="spark1"), answers)


@pytest.mark.parametrize(
    ("module", "answer", "place"),
    [
        ("models", {}, "models has no models"),
        ("models", [], "models is "),
        ("models", {"models": {}}, r"models\.models is "),
        ("models", {"models": [7]}, r"models\.models\[0\] is "),
        ("models", {"models": [{**FOLDER, "size_bytes": "1"}]}, r"models\.models\[0\]\.size_bytes is "),
        ("models", {"models": [{**FOLDER, "size_bytes": -1}]}, r"models\.models\[0\]\.size_bytes is "),
        ("models", {"models": [{**FOLDER, "used_by": [None]}]}, r"models\.models\[0\]\.used_by\[0\] is "),
        ("inspect_server", {**SERVER, "port": "8000:x;$(id)"}, r"inspect_server\.port"),
        ("inspect_server", {**SERVER, "port": 0}, r"inspect_server\.port"),
        ("inspect_server", {**SERVER, "models": ["m"]}, r"inspect_server\.models"),
        ("inspect_server", {**SERVER, "models": {"m": "4k"}}, r"inspect_server\.models\.m"),
        ("inspect_server", {**SERVER, "models": {"m": 0}}, r"inspect_server\.models\.m"),
        ("inspect_server", {**SERVER, "loopback": None}, r"inspect_server\.loopback"),
    ],
)
def test_invalid_answer_is_refused_with_the_place(module: str, answer: Any, place: str) -> None:
    assert_invalid(module, answer, place)


@pytest.mark.parametrize("option", ["restart", *DOCKER_OPTIONS])
def test_docker_option_of_another_type_is_refused(option: str) -> None:
    """The checks of the options' values, which an import calls next, expect the recipe's types."""
    settings: dict[str, Any] = {
        **dict.fromkeys(("name", "image", "network"), ""),
        **{key: [] for key in ("program", "command", "ports", "volumes")},
        "entrypoint": None,
        "env": {},
        "running": True,
        "options": {option: [{}]},
    }
    assert_invalid("container_settings", settings, f"container_settings.options.{option}")
