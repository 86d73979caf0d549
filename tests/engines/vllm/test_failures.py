"""Failures of vLLM: the last lines of a log and their explanation (failures.yml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.engines.log.failure_collector import MAX_EXCEPTIONS, ExceptionCollector
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("failures.yml").read_text())
START = "(APIServer pid=1) INFO 10-20 10:00:00 [api_utils.py:286] non-default args: {'model': '/m'}\n"
READY = START + "INFO:     Application startup complete.\n"


def case_id(case: dict[str, Any]) -> str:
    return str(case["failure"] or case["words"])[:60]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_failure_of_a_start_is_explained(case: dict[str, Any]) -> None:
    state = read_log(START + case["words"], LOG)
    assert state.failure.value == case["failure"]
    if case["failure"]:
        assert state.failure.evidence in case["words"]
        assert state.to_json()["ready"] is False


@pytest.mark.parametrize("case", [item for item in CASES if "usage" not in item["words"]], ids=case_id)
def test_the_failure_is_explained_without_the_start_of_the_log(case: dict[str, Any]) -> None:
    assert read_log(case["words"], LOG).failure.value == case["failure"]


@pytest.mark.parametrize("case", [item for item in CASES if " error: " not in item["words"]], ids=case_id)
def test_few_errors_end_a_serving_server(case: dict[str, Any]) -> None:
    failure = read_log(READY + case["words"], LOG).failure.value
    if case.get("serving"):
        assert failure == case["failure"]
    elif "Engine core init" not in case["words"]:
        assert failure is None


def test_an_old_error_does_not_explain_a_later_end() -> None:
    old_error = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    later_lines = "(APIServer pid=1) DEBUG 10-20 10:00:00 [a.py:1] all is well\n" * 2000
    end = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert (
        read_log(READY + old_error + later_lines + end, LOG).failure.value
        == "its engine failed while it served a request."
    )


def test_an_error_is_not_a_failure_if_the_start_continues() -> None:
    next_stage = "(EngineCore pid=7) INFO 10-20 10:00:05 [a.py:1] Starting to load model /m...\n"
    assert read_log(START + "RuntimeError: odd\n" + next_stage, LOG).failure.value is None


def test_errors_during_a_shutdown_are_not_failures() -> None:
    stop = "(APIServer pid=1) INFO 10-20 10:00:09 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    end = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    state = read_log(READY + stop + end, LOG)
    assert (state.failure.value, state.value("stopped")) == (None, True)


def test_a_failure_without_a_known_cause_mentions_speculation() -> None:
    arguments = START.replace("'/m'}", "'/m', 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}")
    ready = arguments + "INFO:     Application startup complete.\n"
    end = "(EngineCore pid=1) ERROR 08-20 11:03:00 [core.py:1] EngineCore encountered a fatal error.\n"
    error = "(EngineCore pid=1) ERROR 08-20 11:03:00 [core.py:1] KeyError: 'x'\n"
    failure = read_log(ready + end + error, LOG).failure.value
    assert failure == (
        "its engine failed while it served a request: KeyError: 'x'. "
        "Speculation is on (mtp): run `bench.ab` without speculative-config to see whether it is the cause."
    )
    failure = read_log(ready + end + "RuntimeError: CUDA error: no kernel image is available\n", LOG).failure.value
    assert failure == "its kernels were not built for this GPU."


def test_an_exception_is_read_across_chunk_boundaries() -> None:
    case = next(case for case in CASES if "nvcc" in case["words"])
    log = (START + case["words"]).encode()
    for offset in range(len(START), len(log), 7):
        assert read_log(iter((log[:offset], log[offset:])), LOG).failure.value == case["failure"]


def test_an_exception_of_a_request_does_not_explain_the_end_of_the_engine() -> None:
    request = "(APIServer pid=1) ERROR 08-20 11:02:59 [serving.py:1] ValueError: prompt too long\n"
    end = (
        "(EngineCore pid=9) ERROR 08-20 11:03:00 [core.py:1] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=9) ERROR 08-20 11:03:00 [core.py:1] IndexError: list index out of range\n"
    )
    failure = read_log(READY + request + end, LOG).failure.value
    assert failure == "its engine failed while it served a request: IndexError: list index out of range."


def test_collected_exceptions_take_bounded_memory() -> None:
    collector = ExceptionCollector(LOG.prefix_pattern)
    for number in range(5000):
        collector.feed(f"(Worker_{number} pid={number}) KeyError: {number}", number)
        collector.feed(f"(Worker_{number} pid={number}) second line", number)
    assert len(list(collector.find_near(0, 10_000))) == MAX_EXCEPTIONS


@pytest.mark.parametrize("variable", ["VLLM_ATTENTION_BACKEND", "VLLM_NO_SUCH_THING"])
def test_each_unread_variable_is_a_warning(variable: str) -> None:
    unread = "(APIServer pid=1) WARNING 11-20 08:00:00 [envs.py:2096] Unknown vLLM environment variable detected: "
    state = read_log(f"{START}{unread}VLLM_OTHER\n{unread}{variable}\n{unread}{variable}\n", LOG)
    assert [line.rpartition(" ")[2] for line in state.warnings] == ["VLLM_OTHER", variable]


def test_a_warning_before_the_first_line_of_a_start_is_kept() -> None:
    entrypoint = "WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.\n"
    assert read_log(f"{entrypoint}{START}", LOG).warnings == [entrypoint.strip()]
    assert read_log(f"{entrypoint}{START}{START}", LOG).warnings == []
