"""Failures from public reports (tests/data/last-words), and the explanation of each."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.engines import engine
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.log.text import strip_wrapper

DATA = Path(__file__).parents[2] / "data" / "last-words"
#: the first line of each engine's start, and the line when it is ready
STARTS = {
    "vllm": (
        "(APIServer pid=1) INFO 01-20 10:00:00 [api_utils.py:286] non-default args: {'model': '/m'}\n",
        "INFO:     Application startup complete.\n",
    ),
    "sglang": (
        "[2025-01-01 00:07:43] server_args=ServerArgs(model_path='/m', port=30000)\n",
        "[2025-01-01 00:09:43] The server is fired up and ready to roll!\n",
    ),
    "llama_cpp": (
        "0.00.1 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust)\n",
        "0.00.2 I srv  llama_server: listening on http://127.0.0.1:8080\n",
    ),
}
CASES: list[tuple[str, dict[str, Any]]] = [
    (name, case) for name in STARTS for case in yaml.safe_load((DATA / f"{name}.yml").read_text())
]
UNSERVED_CASES = [(name, case) for name, case in CASES if not case.get("served")]
VLLM = engine.get_engine("vllm").log
ASSIGNED_RANK = (
    "(EngineCore pid=9) INFO 01-20 10:00:01 [parallel_state.py:1] rank 0 in world size {0} is assigned as "
    "DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank N/A, EPLB rank N/A\n"
)


def read_failure(name: str, words: str, *, served: bool) -> str | None:
    start, ready = STARTS[name]
    state = read_log(start + (ready if served else "") + words, engine.get_engine(name).log)
    assert not state.failure.value or state.failure.evidence in "\n".join(map(strip_wrapper, words.splitlines()))
    failure: str | None = state.failure.value
    return failure


def format_ids(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{name}: {case['source']}" for name, case in cases]


def test_every_engine_has_reports() -> None:
    assert len(CASES) >= 60
    assert all(sum(engine_name == name for engine_name, _ in CASES) >= 15 for name in STARTS)


@pytest.mark.parametrize(("name", "case"), CASES, ids=format_ids(CASES))
def test_reported_failures_are_explained(name: str, case: dict[str, Any]) -> None:
    assert read_failure(name, case["words"], served=bool(case.get("served"))) == case["says"]


@pytest.mark.parametrize(("name", "case"), UNSERVED_CASES, ids=format_ids(UNSERVED_CASES))
def test_reported_failures_are_explained_without_the_start_of_the_log(name: str, case: dict[str, Any]) -> None:
    assert read_log(case["words"], engine.get_engine(name).log).failure.value == case["says"]


@pytest.mark.parametrize(
    "wrapper", ["vllm-1  | ", "2026-11-20T08:00:40.123456789Z ", "Aug  9 18:34:27 spark1 docker[87]: ", "[rank0]: "]
)
def test_line_prefixes_of_other_programs_change_nothing(wrapper: str) -> None:
    for case in (case for name, case in CASES if name == "vllm"):
        bare = "".join(f"{strip_wrapper(line)}\n" for line in case["words"].splitlines())
        wrapped = "".join(f"{wrapper}{line}\n" for line in bare.splitlines())
        served = bool(case.get("served"))
        assert read_failure("vllm", wrapped, served=served) == read_failure("vllm", bare, served=served)


@pytest.mark.parametrize(
    ("words", "single_host", "cluster"),
    [
        (
            "(EngineCore pid=9) ERROR 01-20 10:05:00 [core.py:9] TimeoutError: RPC call to execute_model timed out.\n",
            "its worker did not answer execute_model within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it exited or is hung.",
            "a rank did not answer execute_model within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it exited or is hung; "
            "see every member's log.",
        ),
        (
            "(MainProcess pid=1) ERROR 01-20 10:05:00 [m.py:9] Worker proc VllmWorker-0 died unexpectedly\n",
            "its worker process was killed or crashed.",
            "the process of rank 0 was killed or crashed.",
        ),
    ],
)
def test_advice_for_a_cluster_is_not_given_to_a_single_host(words: str, single_host: str, cluster: str) -> None:
    start, ready = STARTS["vllm"]
    end = "(APIServer pid=1) ERROR 01-20 10:05:00 [async_llm.py:9] EngineDeadError: EngineCore encountered an issue.\n"
    for size, sentence in ((1, single_host), (2, cluster)):
        log = start + ASSIGNED_RANK.format(size) + ready + words + end
        assert read_log(log, VLLM).failure.value == sentence


@pytest.mark.parametrize(
    ("size", "explanation"),
    [
        (1, "its processes could not connect to each other at 127.0.0.1:29501 on this host."),
        (
            2,
            "the head at 127.0.0.1:29501 did not answer: see its own log, and check that the hosts can reach each other over the "
            "fabric.",
        ),
    ],
)
def test_processes_of_one_host_that_cannot_connect_are_not_blamed_on_a_head(size: int, explanation: str) -> None:
    connecting = f"(Worker pid=7) INFO 01-20 10:00:00 [p.py:1] world_size={size} rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:29501 backend=gloo\n"
    words = "(Worker pid=7) ERROR 01-20 10:00:00 [a.py:9] torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (127.0.0.1, 29501).\nRuntimeError: Engine core initialization failed.\n"
    start, _ = STARTS["vllm"]
    assert read_log(start + connecting + words, VLLM).failure.value == explanation


def test_a_worker_traceback_is_a_failure_only_at_the_end_of_the_log() -> None:
    prefix = "(Worker_TP1 pid=8) ERROR 01-20 10:00:00 [w.py:9] "
    words = f"{prefix}Traceback (most recent call last):\n{prefix}  File \"/x/moe.py\", line 1, in forward\n{prefix}KeyError: 'w2_scale'\n"
    later_lines = "(Worker_TP1 pid=8) INFO 01-20 10:00:01 [w.py:9] something else\n" * 3
    start, ready = STARTS["vllm"]
    assert read_log(start + words, VLLM).failure.value == "KeyError: 'w2_scale'."
    assert read_log(start + words + later_lines, VLLM).failure.value is None
    assert read_log(start + ready + words, VLLM).failure.value is None
    other_process = words.replace("Worker_TP1 pid=8", "APIServer pid=1")
    assert read_log(start + other_process, VLLM).failure.value is None


def test_source_lines_in_a_traceback_are_not_messages() -> None:
    words = (
        "Traceback (most recent call last):\n"
        '  File "/x/kv.py", line 9, in check\n'
        '    raise ValueError("No available memory for the cache blocks.") if free else KeyError(name)\n'
        "KeyError: 'layer.0'\n"
    )
    assert read_failure("vllm", words, served=False) == "KeyError: 'layer.0'."
