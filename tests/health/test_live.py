"""What is so at this moment, from one look at the container and one at /health."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.health import live
from sparkwright.health.record import Container

NOW_S = 1_000_000.0
URL = "http://127.0.0.1:8000"


def judged(box: dict[str, Any], health: int | None, good: dict[str, Any]) -> tuple[str, str]:
    container = Container("qwen35", id="a", **{"status": "running", "started_s": NOW_S - 10, **box})
    return live.judged(live.Now(NOW_S, container, URL, health), good)


@pytest.mark.parametrize(
    ("box", "health", "good", "state", "why"),
    [
        ({}, 200, {}, "up", "no token was asked for"),
        ({}, 0, {}, "starting", "starting for 10 s"),
        ({}, 0, {"container_id": "a", "since": NOW_S - 5}, "down", "nothing answers"),  # it was verified in this start
        ({}, 0, {"container_id": "a", "since": NOW_S - 60}, "starting", "starting for 10 s"),  # started again since
        ({}, 0, {"container_id": "b", "since": NOW_S - 5}, "starting", "starting for 10 s"),  # another container was
        ({}, 503, {}, "down", "/health answers 503"),
        ({"status": "paused"}, 0, {}, "down", "qwen35 is paused"),
        ({"status": "exited", "exit_code": 1}, 0, {}, "down", "qwen35 is exited (exit code 1)"),
        ({"status": "restarting", "exit_code": 1, "restarts": 3}, 0, {}, "crash-looping", "restart 3 is under way"),
        ({"status": "restarting", "exit_code": 0, "restarts": 1}, 0, {}, "starting", "qwen35 is being restarted"),
        ({"status": "absent"}, 0, {}, "down", "there is no container qwen35"),
        ({}, None, {}, "unknown", "qwen35 publishes no port"),
        ({"started_s": None}, 0, {}, "unknown", "it is not known since when it runs"),
    ],
)
def test_a_state_is_of_this_moment(
    box: dict[str, Any], health: int | None, good: dict[str, Any], state: str, why: str
) -> None:
    said = judged(box, health, good)
    assert (said[0], why in said[1]) == (state, True), said
