"""The result of `verify` for a running container that does not answer: it is starting, or it has failed."""

import re
from pathlib import Path

import pytest

from sparkwright.errors import Exit
from sparkwright.modules.proof.inspect_server import InspectServer
from sparkwright.modules.proof.verdict import Verdict
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Result
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs, docker_engine

LOGS = Path(__file__).parents[2] / "data" / "vllm-0.32.0"
READY, FAILED = ((LOGS / name / "server.log").read_text() for name in ("abbreviated", "chunked-disable"))
LOADING = READY[: READY.index("Loading safetensors checkpoint shards: 100%")]


def inspect_start(home: Path, log: str, *, age_s: float = 12, restarts: int = 0) -> Result:
    container = container_attrs(port=1, age_s=age_s, restarts=restarts)
    spec = ContainerSpec(name="qwen35", image="vllm/vllm-openai:v0.32.0", ports=("1:8000",))
    with docker_engine(container, log.encode()) as docker_host:
        args = InspectServer.Args(spec=spec.to_json(), serve={"ready_s": 600}, host="spark1")
        return InspectServer().run(args, RecordingContext(home, docker_host=docker_host))


def test_starting_server_is_inconclusive(tmp_path: Path) -> None:
    result = inspect_start(tmp_path, LOADING)
    assert (result.failed, result.exit) == (True, Exit.INCONCLUSIVE)
    assert re.match(r"qwen35 has been starting for \d+ s \(weights, 0 of 1 shards\); nothing answers at", result.msg), (
        result.msg
    )
    checks = {"server": result.registered() | result.data, "generates": {"skipped": True}}
    verdict = Verdict().run(Verdict.Args(checks=checks), RecordingContext(tmp_path))
    assert verdict.exit == Exit.INCONCLUSIVE and "has been starting for" in verdict.msg


def test_log_without_a_stage_is_trusted_within_the_start_limit(tmp_path: Path) -> None:
    assert inspect_start(tmp_path, "").exit == Exit.INCONCLUSIVE
    late = inspect_start(tmp_path, "", age_s=601)
    assert (late.failed, late.exit) == (True, None)


@pytest.mark.parametrize(("log", "restarts"), [(READY, 0), (FAILED, 0), (LOADING, 1)])
def test_server_that_was_ready_failed_or_restarted_is_a_failure(tmp_path: Path, log: str, restarts: int) -> None:
    result = inspect_start(tmp_path, log, restarts=restarts)
    assert (result.failed, result.exit) == (True, None)
    assert "nothing answers at" in result.msg
