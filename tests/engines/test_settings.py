"""Two starts compared with each other, by the config dumps of real logs of vLLM 0.32.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines.log import resolution as log_dump
from sparkwright.engines.vllm import log as dump

VLLM = engines.of("vllm")
LOGS = Path(__file__).parent.parent / "data" / "vllm-0.32.0"


def of(case: str) -> dict[str, str]:
    """Return the settings of a kept start; one model has two names in these logs."""
    text = (LOGS / case / "server.log").read_text(errors="replace").replace("tiny-qwen3next", "gated_delta")
    lines = text.splitlines()
    return next(found for line in lines if (found := dump.of_line(line)))


def test_a_dump_is_taken_apart_at_its_own_commas() -> None:
    found = of("hybrid-defaults")
    assert (found["enable_chunked_prefill"], found["max_seq_len"], found["seed"]) == ("True", "4096", "0")
    assert found["structured_outputs_config"].startswith("StructuredOutputsConfig(backend='auto', ")
    assert "inductor_passes" in found["compilation_config"]


def test_saying_enable_chunked_prefill_does_nothing_to_a_hybrid() -> None:
    assert log_dump.differences(of("hybrid-defaults"), of("hybrid-chunked-on")) == {}
    assert log_dump.compared(of("hybrid-defaults"), of("hybrid-chunked-on"), ["enable-chunked-prefill"], VLLM) == "same"


def test_turning_it_off_shows() -> None:
    on, off = of("hybrid-prefix-off"), of("hybrid-chunked-off-prefix-off")
    differs = log_dump.differences(on, off)
    assert differs["enable_chunked_prefill"] == ("True", "False")
    assert log_dump.compared(on, off, ["enable-chunked-prefill"], VLLM) == "differs"


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        (["enable-chunked-prefill", "max-model-len"], "same"),
        (["async-scheduling"], "not shown"),
        (["enable-chunked-prefill", "max-num-seqs"], "not shown"),
    ],
)
def test_equal_dumps_prove_nothing_of_a_flag_that_they_do_not_show(changed: list[str], verdict: str) -> None:
    value = of("hybrid-defaults")
    assert log_dump.compared(value, dict(value), changed, VLLM) == verdict


def test_places_are_no_settings() -> None:
    line = "INFO Initializing a V1 LLM engine (v0.32.0) with config: seed=0, compilation_config={'cache_dir': '/a', 'mode': 3}"
    assert dump.of_line(line) == dump.of_line(line.replace("/a", "/b"))
    assert dump.of_line("nothing of that") is None


def test_nothing_known_is_never_the_same() -> None:
    assert log_dump.compared({}, {}, [], VLLM) == "not shown"
