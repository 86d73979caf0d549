"""A recipe's flags for llama.cpp: names, rendering, parsing, and invalid values."""

from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.flags import Command, find_duplicate
from sparkwright.engines.llama_cpp import flags, image

DATA = Path(__file__).parents[2] / "data" / "llama.cpp"


@pytest.mark.parametrize("build", [flags.OLDEST_BUILD, flags.NEWEST_BUILD])
def test_the_table_has_every_option_of_the_help(build: int) -> None:
    options = image.parse_help((DATA / f"help-b{build}.txt").read_text())
    known = {name for name in flags.TABLE.all_options if flags.exists(name, build)}
    assert known == set(options) - {"usage", "version", "cache-list", "list-devices", "completion-bash"}
    for name in known:
        ours, theirs = flags.TABLE.all_options[name], options[name]
        assert (set(ours.words), set(ours.off)) == (set(theirs.words), set(theirs.off)), name
        assert {"switch": 0, "bare": 0, "two": 2}.get(ours.kind, 1) == theirs.value_count, name
        assert ours.kind == "on" or not theirs.choices or ours.choices == theirs.choices, name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("c", "ctx-size"),
        ("-c", "ctx-size"),
        ("ctx_size", "ctx-size"),
        ("-C", "cpu-mask"),
        ("ngl", "n-gpu-layers"),
        ("gpu-layers", "n-gpu-layers"),
        ("no-mmap", "mmap"),
        ("no-webui", "webui"),
        ("nkvo", "kv-offload"),
        ("no-host", "no-host"),
        ("max_model_len", "max-model-len"),
    ],
)
def test_every_spelling_of_a_flag_has_the_same_name(written: str, name: str) -> None:
    assert flags.canonical(written) == name


def test_two_spellings_of_a_flag_are_duplicates() -> None:
    assert find_duplicate(flags, ["c", "port", "ctx_size"]) == ("c", "ctx_size")
    assert find_duplicate(flags, ["mmap", "no-mmap"]) == ("mmap", "no-mmap")
    assert find_duplicate(flags, ["c", "C"]) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"c": 8192}, "--ctx-size 8192"),
        ({"no-mmap": True}, "--no-mmap"),
        ({"mmap": False}, "--no-mmap"),
        ({"fit": False}, "--fit off"),
        ({"flash-attn": "auto"}, "--flash-attn auto"),
        ({"flash-attn": True}, "--flash-attn on"),
        ({"metrics": False}, ""),
        ({"no-kv-offload": True}, "--no-kv-offload"),
        ({"alias": ["a", "b"]}, "--alias a,b"),
        ({"chat-template-kwargs": {"enable_thinking": False}}, '--chat-template-kwargs {"enable_thinking":false}'),
        ({"control-vector-layer-range": [1, 9]}, "--control-vector-layer-range 1 9"),
        ({"something-new": 5}, "--something-new 5"),
        ({"c": None}, ""),
    ],
)
def test_flags_are_rendered_as_words_and_parsed_back(value: dict[str, Any], words: str) -> None:
    assert " ".join(flags.argv(value)) == words
    parsed = flags.parse_command(["-m", "/models/a.gguf", *flags.argv(value)])
    assert parsed.model == "/models/a.gguf"
    assert flags.argv(parsed.flags) == flags.argv(value)


def test_short_options_are_parsed() -> None:
    words = ["/app/llama-server", "-m", "/models/a.gguf", "-c", "4096", "-ngl", "all", "-fa", "on", "-nkvo"]
    arguments = flags.parse_command(words)
    assert arguments == Command(
        "/models/a.gguf", {"ctx-size": 4096, "n-gpu-layers": "all", "flash-attn": "on", "kv-offload": False}
    )


def test_a_command_always_sets_host_and_port() -> None:
    words = " ".join(flags.command("/models/a", {"model": "x-00001-of-00003.gguf", "mmproj": "m.gguf"}))
    assert words.startswith(
        "--model /models/a/x-00001-of-00003.gguf --mmproj /models/a/m.gguf --host 0.0.0.0 --port 8080"
    )
    assert words.endswith("--metrics --log-verbosity 4 --offline")
    assert "--port 9000" in " ".join(flags.command("/models/a", {"port": 9000}))
    assert "--metrics" not in flags.command("/models/a", {"metrics": False})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ctx-size", "128k", "must be a whole number, got '128k'"),
        ("ctx-size", -5, "must be at least 0, got '-5'"),
        ("parallel", 0, "must be at least 1, or -1 for the server's choice, got '0'"),
        ("n-gpu-layers", "most", "must be a whole number, auto or all, got 'most'"),
        ("cache-type-k", "q9_0", "must be one of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1, got 'q9_0'"),
        ("flash-attn", "maybe", "must be one of on, off, auto, got 'maybe'"),
        ("fit", "auto", "must be one of on, off, got 'auto'"),
        ("metrics", "yes", "is a switch and takes no value, got 'yes'"),
        ("ctx-size", True, "needs a value, got true"),
        ("ctx-size", [1, 2], "takes one value, got [1, 2]"),
        ("chat-template-kwargs", "a=1", "must be a mapping, as YAML or as JSON, got 'a=1'"),
        ("control-vector-layer-range", 4, "takes two values, got 4"),
    ],
)
def test_invalid_values_are_described(name: str, value: Any, problem: str) -> None:
    assert flags.find_value_problem({name: value}, name) == problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n-gpu-layers", "all"), ("fit", False), ("flash-attn", True)),
        *(("ctx-size", "4096"), ("parallel", -1), ("alias", ["a"])),
    ],
)
def test_valid_values_are_accepted(name: str, value: Any) -> None:
    assert flags.find_value_problem({name: value}, name) == ""


@pytest.mark.parametrize(
    ("name", "build", "exists"),
    [
        ("mmap", flags.OLDEST_BUILD, True),
        ("mmap", flags.NEWEST_BUILD, False),
        ("mmap", 11000, None),
        ("lazy-mode", flags.OLDEST_BUILD, False),
        ("ctx-size", None, True),
        ("max-model-len", flags.NEWEST_BUILD, False),
    ],
)
def test_options_are_known_by_build(name: str, build: int | None, exists: bool | None) -> None:
    assert flags.exists(name, build) is exists


@pytest.mark.parametrize(
    ("value", "name"),
    [({}, "a-Q4.gguf"), ({"alias": "qwen"}, "qwen"), ({"alias": "qwen, coder"}, "coder"), ({"alias": ["b", "a"]}, "a")],
)
def test_the_served_name_is_the_alias_or_the_file(value: dict[str, Any], name: str) -> None:
    assert flags.served_names(value, "/models/a-Q4.gguf")[0] == name
