"""Why an engine died, as cases: its last words and the sentence for them (deaths.yml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.engines.log.reader import read
from sparkwright.engines.vllm.log import LOG

HERE = Path(__file__).parent
CASES: list[dict[str, Any]] = yaml.safe_load((HERE / "deaths.yml").read_text())
BEGUN = "(APIServer pid=1) INFO 10-20 10:00:00 [api_utils.py:286] non-default args: {'model': '/m'}\n"
READY = BEGUN + "INFO:     Application startup complete.\n"


def name_of(case: dict[str, Any]) -> str:
    return str(case["failure"] or case["words"])[:60]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_last_words_of_a_start_are_one_sentence(case: dict[str, Any]) -> None:
    state = read(BEGUN + case["words"], LOG)
    assert state.failure.value == case["failure"]
    if case["failure"]:
        assert state.failure.evidence in case["words"]
        assert state.to_json()["ready"] is False


@pytest.mark.parametrize("case", [one for one in CASES if "usage" not in one["words"]], ids=name_of)
def test_words_alone_are_enough(case: dict[str, Any]) -> None:
    assert read(case["words"], LOG).failure.value == case["failure"]


@pytest.mark.parametrize("case", [one for one in CASES if " error: " not in one["words"]], ids=name_of)
def test_a_server_that_serves_dies_of_few_things(case: dict[str, Any]) -> None:
    failure = read(READY + case["words"], LOG).failure.value
    if case.get("serving"):
        assert failure == case["failure"]
    elif "Engine core init" not in case["words"]:
        assert failure is None


def test_refused_arguments_are_a_start_of_their_own() -> None:
    state = read(READY + "vllm serve: error: unrecognized arguments: --x\n", LOG)
    assert (state.failure.value, state.ready) == ("the engine does not know: --x.", False)


def test_what_happened_long_before_does_not_explain_an_end() -> None:
    old = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    between = "(APIServer pid=1) DEBUG 10-20 10:00:00 [a.py:1] all is well\n" * 2000
    end = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    assert read(READY + old + between + end, LOG).failure.value == "its engine failed while it served a request."


def test_an_error_after_which_the_start_goes_on_was_not_its_end() -> None:
    goes_on = "(EngineCore pid=7) INFO 10-20 10:00:05 [a.py:1] Starting to load model /m...\n"
    assert read(BEGUN + "RuntimeError: odd\n" + goes_on, LOG).failure.value is None


def test_errors_while_it_stops_are_part_of_stopping() -> None:
    stop = "(APIServer pid=1) INFO 10-20 10:00:09 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    end = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    state = read(READY + stop + end, LOG)
    assert (state.failure.value, state.value("stopped")) == (None, True)
