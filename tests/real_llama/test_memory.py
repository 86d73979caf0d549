"""Sparkwright's reading of a model file and its memory estimate, checked against the real server's log."""

import re
from pathlib import Path

import pytest

from sparkwright.engines.llama_cpp import advice, flags, gguf
from sparkwright.engines.llama_cpp.log import LOG
from sparkwright.engines.log.reader import read_log
from sparkwright.units import MIB
from tests.real_llama import server as servers
from tests.real_llama import tiny_gguf

#: with and without a context, slots of their own or a shared one, longer than trained, quantised
WORDS = ("", "-np 2", "-c 5000 -np 3", "-c 5000 -np 3 -kvu", "-c 20000 -np 2", "-c 4096 -np 2 -ctk q8_0 -ctv q4_0")


def test_the_header_has_the_written_values(tiny: Path) -> None:
    header = gguf.parse_header(tiny.read_bytes())
    shape = tiny_gguf.Shape()
    assert (
        header.architecture,
        header.architecture_value("block_count"),
        header.architecture_value("context_length"),
    ) == ("llama", shape.layers, tiny_gguf.TRAINED_CONTEXT)
    assert (
        header.architecture_value("attention.head_count"),
        header.architecture_value("attention.head_count_kv"),
    ) == (shape.heads, shape.kv_heads)
    assert header.tensors == 3 + 9 * shape.layers
    assert header.values["tokenizer.chat_template"] == tiny_gguf.TEMPLATE
    assert header.values["tokenizer.ggml.merges"] == ["t h"]


@pytest.mark.parametrize("words", WORDS)
def test_the_estimated_cache_and_context_match_the_server(tiny: Path, tmp_path: Path, words: str) -> None:
    flag_values = flags.parse_command(words.split()).flags
    header = gguf.parse_header(tiny.read_bytes())
    with servers.running_server(tmp_path, "-m", str(tiny), "-lv", "4", "--no-warmup", *words.split()) as server:
        assert server.wait_until_served() and server.wait_for_log("KV buffer size =")
        message = float(re.findall(r"KV buffer size = +([\d.]+) MiB", server.log)[0])
        slot = server.ask("/props").body["default_generation_settings"]["n_ctx"]
        count = server.ask("/props").body["total_slots"]
    held = advice.kv_bytes(header, flag_values)
    assert held is not None
    assert held / MIB == pytest.approx(message, abs=0.006)
    assert flags.slots(flag_values) == count
    assert min(flags.context(flag_values) or tiny_gguf.TRAINED_CONTEXT, tiny_gguf.TRAINED_CONTEXT) == slot


def test_both_caches_of_a_model_with_windows_are_read(tmp_path: Path) -> None:
    model = tiny_gguf.write_model(tmp_path / "windows.gguf", tiny_gguf.Shape(layers=4, window=256))
    with servers.running_server(
        tmp_path, "-m", str(model), "-lv", "4", "--no-warmup", "-c", "8192", "-np", "1"
    ) as server:
        assert server.wait_until_served()
        log = server.log
    caches = [float(size) for size in re.findall(r"KV buffer size = +([\d.]+) MiB", log)]
    assert len(caches) == 2
    cache_mib = read_log(log, LOG).value("kv_cache_mib")
    assert cache_mib == pytest.approx(sum(caches), abs=0.01)
    most = advice.kv_bytes(gguf.parse_header(model.read_bytes()), flags.parse_command(["-c", "8192", "-np", "1"]).flags)
    assert most is not None and most / MIB >= cache_mib, "what is said before the start is the most"
