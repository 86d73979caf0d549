"""A host serves if its container runs and generates a token; an unreachable engine is not an error."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.modules.server.server_inspection import Serving
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs, docker_engine


def inspect_server(
    home: Path, url: str, *, running: bool = True, name: str = "", verified: str | None = None
) -> dict[str, Any]:
    """Return the result for the container qwen35.

    Args:
        verified: the id of the last verified container, by default of this one; empty for none.
    """
    container = container_attrs(port=int(url.rpartition(":")[2] or 0), running=running)
    verified_id = container["Id"] if verified is None else verified
    with docker_engine(container) as docker_host:
        context = RecordingContext(home, docker_host=docker_host)
        if verified_id:
            context.state.write("verified", {"spec": {"name": "qwen35", "image": "a"}, "container_id": verified_id})
        result = Serving().run(Serving.Args(name=name, timeout_s=1), context)
    assert not result.failed
    return result.data


@pytest.mark.parametrize(("schedule", "serves"), [({}, True), ({"silent": True}, False), ({"status": 500}, False)])
def test_only_a_token_counts(tmp_path: Path, schedule: dict[str, Any], serves: bool) -> None:
    with serving(Schedule(**schedule)) as server:
        assert inspect_server(tmp_path, server.url)["serving"] is serves


def test_unverified_server_is_serving_but_not_verified(tmp_path: Path) -> None:
    with serving(Schedule()) as server:
        assert inspect_server(tmp_path, server.url, name="qwen35", verified="")["verified"] is False
        assert inspect_server(tmp_path, server.url)["verified"] is True
        assert inspect_server(tmp_path, server.url, verified="other")["verified"] is False


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"running": False}, "is not running"),
        ({"verified": "", "name": "none"}, "there is no container none"),
        ({"verified": ""}, "nothing has ever been deployed"),
        ({}, "publishes no port"),
    ],
)
def test_reason_for_not_serving_is_reported(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    result = inspect_server(tmp_path, "", **options)
    assert (result["serving"], reason in result["why"]) == (False, True), result


def test_unreachable_docker_engine_is_not_an_error(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host=f"unix://{tmp_path}/none.sock")
    result = Serving().run(Serving.Args(name="qwen35"), context)
    assert (result.failed, result.data["serving"]) == (False, False)
