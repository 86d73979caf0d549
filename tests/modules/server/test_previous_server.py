"""A server that is not running is neither recorded as verified nor as restored, even if nothing else has to change."""

from pathlib import Path

import pytest

from sparkwright.errors import Failed
from sparkwright.modules.server.previous_server import GrantRestart
from sparkwright.modules.server.records import GrantRestartPrevious
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs, docker_engine

STOPPED = container_attrs(running=False)  # with the restart policy `no`, as a rank of a cluster
VERIFIED_STATE = {"spec": {"name": "qwen35", "image": "a"}, "container_id": STOPPED["Id"], "since": 1.0}


def test_a_stopped_rank_is_not_recorded_as_restored(tmp_path: Path) -> None:
    with docker_engine(STOPPED) as docker_host:
        context = RecordingContext(tmp_path, docker_host=docker_host)
        context.state.write("previous", {"id": STOPPED["Id"], "policy": "no", "running": True})
        with pytest.raises(Failed, match="container qwen35 is no longer running"):
            GrantRestartPrevious().run(GrantRestartPrevious.Args(name="qwen35", restart="no"), context)
    assert context.state.read("previous"), "the record of its stop is kept"
    assert not (context.state.path / "history.jsonl").exists()


def test_a_stopped_server_is_not_verified_again(tmp_path: Path) -> None:
    with docker_engine(STOPPED) as docker_host:
        context = RecordingContext(tmp_path, docker_host=docker_host)
        context.state.write("verified", VERIFIED_STATE)
        spec = {"name": "qwen35", "image": "a", "restart": "no"}
        with pytest.raises(Failed, match="container qwen35 is no longer running"):
            GrantRestart().run(GrantRestart.Args(spec=spec), context)
