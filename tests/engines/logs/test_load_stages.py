"""The durations of a start's stages: from a log to the line of the history and of `status`."""

from __future__ import annotations

from pathlib import Path

from sparkwright.engines.log import state as log_state
from sparkwright.engines.log.reader import read
from sparkwright.engines.vllm.log import LOG
from tests.engines.logs.test_vllm import GPU_START, state_of

COMPILED = Path(__file__).parents[2] / "data/vllm-0.32.0-compiled"


def test_a_start_on_a_gpu_tells_all_stages_in_their_order() -> None:
    stages = log_state.load_stages(read(GPU_START.encode(), LOG))
    assert log_state.sentence(stages) == "weights 214 s, compile 52 s, autotune 37 s, graphs 14 s"


def test_an_eager_start_compiled_and_captured_nothing() -> None:
    assert set(log_state.load_stages(state_of("llama-eager"))) == {"weights"}


def test_what_a_host_sends_instead_of_seconds_is_not_shown() -> None:
    assert log_state.sentence({"weights": "[red]1[/]", "compile": True, "graphs": 2.5, "other": 1}) == "graphs 2.5 s"


def test_a_compiled_start_on_a_cpu_tells_how_long_it_compiled() -> None:
    state = read((COMPILED / "cold.log").read_bytes(), LOG)
    assert log_state.sentence(log_state.load_stages(state)) == "weights 0.1 s, compile 175 s"
    assert not [warning for warning in state.warnings if "load failure" in warning]


def test_an_artefact_that_could_not_be_loaded_is_a_warning() -> None:
    state = read((COMPILED / "warm.log").read_bytes(), LOG)
    assert [warning for warning in state.warnings if "Compiling model again due to a load failure" in warning]
