"""A host that answers nonsense about its models fails alone, with a sentence; what it says is shown without its escapes."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.app.questions import served
from sparkwright.errors import Failed
from tests.fuzz.harness import feed, values

FOLDER = {
    "dir": "/home/u/m",
    "id": "a/b",
    "commit": "a" * 40,
    "files": 1,
    "size_bytes": 1,
    "changed": [],
    "used_by": ["x"],
}


def test_an_answer_is_as_it_was() -> None:
    assert served.read(served.Models, {"models": [FOLDER]}) == {"models": [FOLDER]}


@pytest.mark.parametrize(
    ("found", "place"),
    [
        ({}, "models"),
        ([], ""),
        ({"models": {}}, "models"),
        ({"models": [7]}, "models.0"),
        ({"models": [{**FOLDER, "size_bytes": "1"}]}, "models.0.size_bytes"),
        ({"models": [{**FOLDER, "size_bytes": -1}]}, "models.0.size_bytes"),
        ({"models": [{**FOLDER, "used_by": [None]}]}, "models.0.used_by.0"),
    ],
)
def test_nonsense_is_a_sentence(found: Any, place: str) -> None:
    with pytest.raises(Failed, match=f"not valid: `{place}`"):
        served.read(served.Models, found)


def test_any_answer() -> None:
    verified = {"dir": "/m", "wrong": ["a"], "files": 3, "size_bytes": 7}
    feed(lambda found: served.read(served.Models, found), values([{"models": [FOLDER, FOLDER]}]))
    feed(lambda found: served.read(served.Verified, found), values([verified]))
    feed(lambda found: served.read(served.Removed, found), values([{**verified, "freed_bytes": 1}]))


SERVER = {"models": {"m": 4096, "n": None}, "port": 8000, "loopback": True, "server_key": False, "image": "a/b:v1"}


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"port": "8000:x;$(id)"}, "port"),
        ({"port": 0}, "port"),
        ({"models": ["m"]}, "models"),
        ({"models": {"m": "4k"}}, "models.m"),
        ({"loopback": None}, "loopback"),
    ],
)
def test_nonsense_about_a_server_makes_no_settings_of_a_client(wrong: dict[str, Any], place: str) -> None:
    assert served.read(served.Server, {**SERVER, "drift": []}) == SERVER
    with pytest.raises(Failed, match=f"about its server is not valid: `{place}"):
        served.read(served.Server, {**SERVER, **wrong})
