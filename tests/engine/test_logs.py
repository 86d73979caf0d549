"""Start-up logs of a real vLLM 0.32.0, read: effective settings, stages, and why it died."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.engine import logs

DATA = Path(__file__).parent.parent / "data" / "vllm-0.32.0"


def state_of(case: str) -> logs.EngineState:
    return logs.read((DATA / case / "server.log").read_bytes())


@pytest.mark.parametrize(
    ("case", "chunked", "prefix"),
    [
        ("hybrid-chunked-on", True, True),
        ("qwen3next-eager", True, True),
        ("hybrid-prefix-off", True, False),
        ("hybrid-chunked-off-prefix-off", False, False),
        ("llama-eager", True, True),
        ("llama-chunked-off", False, True),
    ],
)
def test_effective_settings_come_from_the_engines_own_dump(case: str, chunked: bool, prefix: bool) -> None:
    state = state_of(case)
    assert (state.value("chunked_prefill"), state.value("prefix_caching")) == (chunked, prefix)
    assert state.value("version") == "0.32.0"
    assert "Initializing a V1 LLM engine" in state.readings["chunked_prefill"].evidence
    assert state.ready


def test_a_hybrid_tells_its_block_size_cache_mode_and_capacity() -> None:
    state = state_of("hybrid-chunked-on")
    assert state.value("block_size") == 256
    assert state.value("mamba_cache_mode") == "align"
    assert state.value("kv_cache_tokens") == 1525201
    assert state.value("max_concurrency") == 372.36
    assert state.shards == (1, 1)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("hybrid-chunked-off", "prefix caching on this recurrent model needs chunked prefill, which is turned off."),
        ("err-unknown-arg", "the engine does not know: --no-such-flag."),
        ("err-max-model-len", "max-model-len 1000000 is more than the model's 8192.0."),
        ("err-no-model", "there is no model at /models/does-not-exist in the container."),
        ("err-port-in-use", "its port is in use inside the container's network."),
        ("err-kv-too-big", "its KV cache was to take 900.0 GiB of memory, and 15.03 GiB were free."),
        ("jamba-eager", "its engine died while it served a request."),
    ],
)
def test_the_reason_of_a_death_is_one_sentence(case: str, sentence: str) -> None:
    state = state_of(case)
    assert state.died.value == sentence
    assert state.died.evidence


def test_a_server_that_was_stopped_has_not_died() -> None:
    assert "EngineDeadError" in (DATA / "llama-eager" / "server.log").read_text()
    assert state_of("llama-eager").died.value is None


def test_only_the_last_start_counts() -> None:
    first, second = (DATA / case / "server.log" for case in ("llama-chunked-off", "llama-eager"))
    state = logs.read(first.read_bytes() + second.read_bytes())
    assert state.value("chunked_prefill") is True


def test_nothing_is_unknown_rather_than_off() -> None:
    state = logs.read("INFO: Started server process [1]\n")
    assert state.value("chunked_prefill") is None
    assert not state.ready


def test_a_later_line_wins_over_the_dump() -> None:
    text = (
        DATA / "llama-eager" / "server.log"
    ).read_text() + "\nINFO Disabling chunked prefill for model without KVCache\n"
    assert logs.read(text).value("chunked_prefill") is False
    assert (
        logs.read(text + "INFO Disabling prefix caching: model has non-causal attention layers.").value(
            "prefix_caching"
        )
        is False
    )


def test_an_error_that_nobody_foresaw_is_told_in_its_own_words() -> None:
    worker = "(Worker pid=7) ERROR 11-21 07:47:10 [multiproc_executor.py:953] AttributeError: 'Lfm2Config' object has no attribute 'conv_dim'"
    last = "RuntimeError: Engine core initialization failed. See root cause above."
    told = "it failed with AttributeError: 'Lfm2Config' object has no attribute 'conv_dim'"
    assert logs.read(f"{worker}\n{last}\n").died.value == told
    assert logs.read(f"{last}\n").died.value == "its engine failed to start."


def test_colour_broken_bytes_and_a_cut_log_do_not_hurt() -> None:
    raw = (DATA / "hybrid-chunked-on" / "server.log").read_bytes()
    coloured = b"\xff\xfe\n" + raw.replace(b"(EngineCore", b"\x1b[0;36m(EngineCore")
    assert logs.read(coloured).value("chunked_prefill") is True
    assert logs.read(raw[: len(raw) // 3]).ready is False
