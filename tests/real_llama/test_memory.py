"""Parsed model files and memory estimates, compared with the real server's log."""

import re
from pathlib import Path

import pytest

from sparkwright.engines.llama_cpp import advice, flags, gguf
from sparkwright.engines.llama_cpp.log import LOG
from sparkwright.engines.log.reader import read_log
from sparkwright.units import MIB
from tests.real_llama import server as servers
from tests.real_llama import tiny_gguf

#: with and without a context, separate and shared slots, longer than trained, quantised
WORDS = ("", "-np 2", "-c 5000 -np 3", "-c 5000 -np 3 -kvu", "-c 20000 -np 2", "-c 4096 -np 2 -ctk q8_0 -ctv q4_0")


def test_the_header_has_the_written_values(tiny: Path) -> None:
    header, shape = gguf.parse_header(tiny.read_bytes()), tiny_gguf.Shape()
    expected = {
        "block_count": shape.layers,
        "context_length": tiny_gguf.TRAINED_CONTEXT,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
    }
    assert header.architecture == "llama"
    assert {name: header.architecture_value(name) for name in expected} == expected
    assert header.tensor_count == 3 + 9 * shape.layers
    assert header.values["tokenizer.chat_template"] == tiny_gguf.TEMPLATE
    assert header.values["tokenizer.ggml.merges"] == ["t h"]


def find_cache_sizes(log: str) -> list[float]:
    """Return the sizes of the KV caches in a log, MiB."""
    return [float(size) for size in re.findall(r"KV buffer size = +([\d.]+) MiB", log)]


@pytest.mark.parametrize("words", WORDS)
def test_the_estimated_cache_and_context_match_the_server(tiny: Path, tmp_path: Path, words: str) -> None:
    flag_values = flags.parse_command(words.split()).flags
    header = gguf.parse_header(tiny.read_bytes())
    with servers.serving(tmp_path, tiny, "-lv", "4", "--no-warmup", *words.split()) as server:
        assert server.wait_for_log("KV buffer size =")
        logged_mib = find_cache_sizes(server.log)[0]
        props = server.ask("/props").body
    cache_bytes = advice.kv_bytes(header, flag_values)
    assert cache_bytes is not None and cache_bytes / MIB == pytest.approx(logged_mib, abs=0.006)
    assert flags.slot_count(flag_values) == props["total_slots"]
    context = min(flags.context(flag_values) or tiny_gguf.TRAINED_CONTEXT, tiny_gguf.TRAINED_CONTEXT)
    assert context == props["default_generation_settings"]["n_ctx"]


def test_both_caches_of_a_model_with_windows_are_read(tmp_path: Path) -> None:
    model = tiny_gguf.write_model(tmp_path / "windows.gguf", tiny_gguf.Shape(layers=4, window=256))
    words = ("-c", "8192", "-np", "1")
    with servers.serving(tmp_path, model, "-lv", "4", "--no-warmup", *words) as server:
        log = server.log
    caches = find_cache_sizes(log)
    assert len(caches) == 2
    cache_mib = read_log(log, LOG).value("kv_cache_mib")
    assert cache_mib == pytest.approx(sum(caches), abs=0.01)
    limit_bytes = advice.kv_bytes(gguf.parse_header(model.read_bytes()), flags.parse_command(words).flags)
    assert limit_bytes is not None and limit_bytes / MIB >= cache_mib, "the estimate is an upper bound"
