"""The panel at the end of a run lists the proofs of the running server."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.console.events.summary import Served, Summary


def test_what_a_second_start_proved_replaces_what_the_first_did() -> None:
    shown: list[str] = []
    summary = Summary(lambda value: "", lambda style, text: shown.append(text))
    summary.serves(Served("spark1", "r", "i", "m", "", "name", "http://spark1:8000"))
    done: dict[str, Any] = {"event": "task_finished", "host": "spark1", "status": "ok", "data": {}}
    for words in ("generates: 8 tokens in 1.29 s", "generates: 8 tokens in 0.21 s"):
        summary.on({**done, "module": "verify_health", "msg": words})
    summary.on({"event": "recap", "host": "spark1", "exit": 0})
    summary.close()
    assert [line.split(maxsplit=1)[1] for line in shown if "proved" in line] == ["generates: 8 tokens in 0.21 s"]


@pytest.mark.parametrize(("worker", "panel"), [(0, True), (1, False), (2, False)])
def test_a_cluster_serves_when_all_its_members_are_as_they_should_be(worker: int, panel: bool) -> None:
    shown: list[str] = []
    summary = Summary(lambda value: "", lambda style, text: shown.append(text))
    served = Served("one", "r", "i", "m", "", "name", "http://one:8000", cluster="pair", members=("one", "two"))
    summary.serves(served)
    proof: dict[str, Any] = {"event": "task_finished", "host": "one", "status": "ok", "module": "verify_health"}
    summary.on({**proof, "msg": "generates: 8 tokens in 0.21 s", "data": {}})
    summary.on({"event": "recap", "host": "one", "exit": 0})
    summary.on({"event": "recap", "host": "two", "exit": worker})
    summary.close()
    assert bool(shown) is panel
