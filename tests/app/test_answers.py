"""Hosts' answers about images: the module's own answer is accepted, and invalid ones are refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from sparkwright.app.questions import host_requests
from sparkwright.errors import Failed
from sparkwright.modules.image import image_transfer as transfer
from tests.fuzz.harness import feed, values
from tests.modules.context import RecordingContext

ID = "sha256:" + "a" * 64
LAYER = "sha256:" + "b" * 64


class Api:
    """An engine with one image."""

    def images(self) -> list[dict[str, Any]]:
        return [{"Id": ID, "RepoTags": ["a/b:c"]}, {"Id": LAYER, "RepoTags": None}]

    def info(self) -> dict[str, Any]:
        return {"DockerRootDir": "/"}

    def inspect_image(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {"Id": ID, "RepoTags": ["a/b:c"], "RepoDigests": [f"a/b@{LAYER}"], "Size": 7}
        return {**found, "Os": "linux", "Architecture": "arm64", "RootFS": {"Layers": [LAYER]}}


class Client:
    api = Api()


@pytest.fixture
def answer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the module's own answer, from an engine that has the image."""
    context = RecordingContext(tmp_path)
    monkeypatch.setattr(context, "docker", lambda: Client())
    data = transfer.InspectImage().run(transfer.InspectImage.Args("a/b:c"), context).data
    return dict(json.loads(json.dumps(data)))


def test_what_look_image_says_is_taken_as_it_is(answer: dict[str, Any]) -> None:
    assert answer["present"]
    assert host_requests.checked("inspect_image", copy.deepcopy(answer), host="spark1") == answer


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
        host_requests.checked("inspect_image", {**answer, field: value}, host="spark1")
    assert error.value.where == "spark1"


def test_any_answer(answer: dict[str, Any]) -> None:
    feed(lambda found: host_requests.checked("inspect_image", found, host="spark1"), values([answer]))
