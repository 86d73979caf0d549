"""A container's log is read with the tables of its engine, which its label names, from a real Docker Engine."""

import uuid
from pathlib import Path
from typing import Any

import docker

from sparkwright.host import evidence
from sparkwright.host.containers import container_labels
from sparkwright.modules.proof.engine_reports import EngineConfig, EngineLog, GpuUsed, VerifyLogs
from tests.host.containers.test_log_reader import engine, shell
from tests.modules.context import RecordingContext

__all__ = ["engine", "shell"]

DATA = Path(__file__).parent.parent / "data" / "llama-b10068"
LABELS = {"sparkwright.engine": "llama_cpp"}


def test_container_of_llama_cpp_is_verified_by_its_log(engine: docker.DockerClient, shell: str, tmp_path: Path) -> None:
    context = RecordingContext(tmp_path)
    log = (DATA / "capped" / "server.log").read_text()
    script = f"while read -r line; do echo \"$line\"; done <<'END'\n{log}END"
    name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
    container: Any = engine.containers.run(shell, ["/bin/sh", "-c", script], name=name, labels=LABELS, detach=True)
    try:
        container.wait(timeout=60)
        assert container_labels.engine_by_name(engine, name).title == "llama.cpp"
        result = EngineLog().run(EngineLog.Args(name), context)
        assert (result.data["engine"], result.data["state"]["slots"]) == ("llama_cpp", 4)
        state = evidence.read_engine_state(context, name)
        assert state is not None and state.value("max_model_len") == 8192
        logs = VerifyLogs().run(VerifyLogs.Args(name, chunked_prefill="enabled"), context)
        assert (logs.failed, logs.msg) == (True, "serves what was requested: disproved.")
        config = EngineConfig().run(EngineConfig.Args(name), context)
        assert config.data["settings"]["slots"] == "4"
        assert config.msg.startswith("llama.cpp: chunked prefill on, prefix caching unknown")
        assert GpuUsed().run(GpuUsed.Args(name, gpus=""), context).data["verdict"] == "not asked for"
    finally:
        container.remove(force=True)
