"""Whether a server uses the GPU: by nvidia-smi's list of processes, compared with a real container, and by its log."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.engines.log.text import iter_lines
from sparkwright.engines.vllm import log_lines
from sparkwright.errors import Exit
from sparkwright.host import nvidia_smi
from sparkwright.host.gpu_processes import DeviceLines, GpuUse
from sparkwright.host.nvidia_smi import GpuProcess
from sparkwright.modules.proof import engine_reports
from sparkwright.modules.proof.engine_reports import GpuUsed
from sparkwright.protocol.result import Result
from tests.host.containers.test_log_reader import engine, shell
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

__all__ = ["engine", "shell"]

StartPrinting = Callable[[str], Any]
DATA = Path(__file__).parent.parent / "data/vllm-0.32.0"
DUMP = "(EngineCore pid=77) INFO 11-21 00:18:35 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m',"


@pytest.fixture
def start_printing(engine: docker.DockerClient, shell: str) -> Iterator[StartPrinting]:
    """A function that creates a container, which prints a line and keeps running."""
    started: list[Any] = []

    def make(line: str) -> Any:
        name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
        options: dict[str, Any] = {"name": name, "detach": True, "network_mode": "none", "stdin_open": True}
        container = engine.containers.run(shell, ["/bin/sh", "-c", 'echo "$0"; read line', line], **options)
        started.append(container)
        wait_until(lambda: line.encode() in container.logs(), "its line")
        return container

    yield make
    for container in started:
        container.remove(force=True)


def check_gpu_use(home: Path, container: Any, *rows: str, missing: bool = False, **arguments: Any) -> Result:
    """Check a container on a host whose nvidia-smi prints these rows. missing: it cannot be executed."""
    tool = home / "bin/nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    tool.chmod(0o644 if missing else 0o755)
    context = RecordingContext(home, env={"PATH": f"{home}/bin:/nowhere"})
    return GpuUsed().run(GpuUsed.Args(name=container.name, **arguments), context)


@pytest.mark.docker
def test_a_compute_process_of_the_container_proves_use_of_the_gpu(
    tmp_path: Path, start_printing: StartPrinting
) -> None:
    container = start_printing("ready")
    table = container.top()
    pid = int(table["Processes"][0][table["Titles"].index("PID")])
    result = check_gpu_use(tmp_path, container, "1, other, 200", f"{pid}, VLLM::EngineCore, 104140")
    assert (result.failed, result.data["verdict"]) == (False, "gpu")
    assert result.msg == f"uses the GPU: VLLM::EngineCore (pid {pid}, 101.7 GiB)"


@pytest.mark.docker
def test_a_server_on_the_cpu_fails_with_both_pieces_of_evidence(tmp_path: Path, start_printing: StartPrinting) -> None:
    result = check_gpu_use(tmp_path, start_printing(f"{DUMP} device_config=cpu, seed=0"), "1, other, 200")
    assert (result.failed, result.data["verdict"]) == (True, "no gpu")
    assert result.msg == "the server does not use the GPU; engine log: device_config=cpu."
    assert result.data["evidence"] == [
        "nvidia-smi: no compute process in the container (others: other (pid 1, 0.2 GiB))",
        "engine log: device_config=cpu",
    ]


@pytest.mark.docker
@pytest.mark.parametrize(
    ("line", "arguments", "failed", "verdict", "message"),
    [
        ("load_tensors: offloaded 5/5 layers to GPU", {}, True, "no gpu", "the server does not use the GPU"),
        (f"{DUMP} device_config=cuda, seed=0", {"missing": True}, False, "gpu",
         "according to its own log: device_config=cuda (nvidia-smi failed"),
        ("ready", {"missing": True}, False, "unknown",
         "unknown whether the server uses the GPU: nvidia-smi failed with exit code 126"),
        ("ready", {"gpus": ""}, False, "not asked for", ""),
    ],
    ids=["offloaded layers", "log without nvidia-smi", "no evidence", "recipe without GPUs"],
)  # fmt: skip
def test_use_of_the_gpu_by_evidence(
    tmp_path: Path, start_printing: StartPrinting, line: str, arguments: Any, failed: bool, verdict: str, message: str
) -> None:
    result = check_gpu_use(tmp_path, start_printing(line), **arguments)
    assert (result.failed, result.data["verdict"]) == (failed, verdict)
    assert message in result.msg
    assert (result.exit is Exit.INCONCLUSIVE) == (verdict == "unknown")


@pytest.mark.parametrize("log", ["llama-eager", "qwen3next-eager"])
def test_the_log_of_a_real_engine_on_a_cpu_is_recognized(log: str) -> None:
    lines = list(iter_lines((DATA / log / "server.log").read_bytes()))
    assert not any(row.match(line) for row in log_lines.GPU_LINES for line in lines)
    assert all(any(row.match(line) for line in lines) for row in log_lines.CPU_LINES)


def test_a_process_without_a_pid_leaves_the_list_incomplete() -> None:
    denied = "[Insufficient Permissions]"
    processes = nvidia_smi.parse_processes(f"{denied}, {denied}, [N/A]\n77, a, b, [N/A]\n")
    assert processes.processes == (GpuProcess(77, "a, b", None),)
    check = engine_reports.evaluate_gpu_use(GpuUse((), processes, processes.error))
    assert check.exit is Exit.INCONCLUSIVE


def test_a_log_with_both_devices_proves_use_of_the_gpu() -> None:
    check = engine_reports.evaluate_gpu_use(GpuUse(device_lines=DeviceLines(gpu_line="CUDA0", cpu_line="CPU_Mapped")))
    assert (check.failed, check.data["verdict"]) == (False, "gpu")
