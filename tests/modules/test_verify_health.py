"""Health is a generated token: the verdicts ready, loading, wedged and dying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.modules.proof.liveness import VerifyHealth
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext


def run(tmp_path: Path, *, asked: str = "m", key: str = "", **plan: Any) -> Result:
    with serving(Schedule(**plan)) as server:
        context = RecordingContext(tmp_path, secrets={"VLLM_API_KEY": Secret(key)} if key else {})
        return VerifyHealth().run(VerifyHealth.Args(base_url=server.url, model=asked, timeout_s=1), context)


def test_a_server_that_generates_is_ready(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.failed, found.data["verdict"], found.data["version"]) == (False, "ready", "0.32.0")


def test_thinking_instead_of_content_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, kind="reasoning")
    assert found.data["thinks"]
    assert "content stays null" in found.msg


@pytest.mark.parametrize(
    ("plan", "verdict"),
    [
        ({"model": "other"}, "wrong name"),
        ({"silent": True}, "wedged"),
        ({"answers": 503}, "dying"),
        ({"dies": True}, "dying"),
        ({"status": 400}, "error"),
        ({"error_at": 0}, "error"),
        ({"api_key": "right"}, "unauthorized"),
    ],
)
def test_what_is_wrong_has_a_name(tmp_path: Path, plan: dict[str, Any], verdict: str) -> None:
    found = run(tmp_path, asked="" if plan.get("api_key") else "m", **plan)
    assert (found.failed, found.data["verdict"]) == (True, verdict)


def test_an_error_under_200_is_told_in_the_servers_words(tmp_path: Path) -> None:
    found = run(tmp_path, error_at=0)
    assert found.msg == "the test request failed with 200: EngineCore encountered an issue."


def test_the_api_key_is_used(tmp_path: Path) -> None:
    assert run(tmp_path, key="right", api_key="right").data["verdict"] == "ready"


def test_nobody_there_is_loading(tmp_path: Path) -> None:
    args = VerifyHealth.Args(base_url="http://127.0.0.1:1")
    assert VerifyHealth().run(args, RecordingContext(tmp_path)).data["verdict"] == "loading"
