"""A recipe's flags for SGLang: names, rendering, parsing, and invalid values. Not tested with a real SGLang."""

import argparse
from collections.abc import Iterable
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.engines.flags import Command
from sparkwright.engines.option_table import Option
from sparkwright.engines.sglang import flags, image


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("context_length", "context-length"),
        ("--port", "port"),
        ("tensor-parallel-size", "tp-size"),
        ("model", "model-path"),
        ("no-enable-tf32-matmul", "enable-tf32-matmul"),
        ("max_model_len", "max-model-len"),
    ],
)
def test_every_spelling_of_a_flag_has_the_same_name(written: str, name: str) -> None:
    assert flags.canonical(written) == name


def test_aliases_and_constants_are_known_flags() -> None:
    aliases = {word.removeprefix("--") for option in flags.TABLE.newest_options.values() for word in option.words[1:]}
    assert not aliases & set(flags.TABLE.newest_options)
    constants = {flags.CONTEXT, flags.SLOTS, flags.CHUNK_SIZE, flags.MEMORY, flags.METRICS, flags.SLEEP_ON_IDLE}
    assert constants | {*flags.KEY_FLAGS} <= set(flags.properties())
    assert flags.MODEL not in flags.properties()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"context_length": 131072}, "--context-length 131072"),
        ({"context-length": "128Ki"}, "--context-length 128Ki"),
        ({"chunked-prefill-size": -1}, "--chunked-prefill-size -1"),
        ({"disable-radix-cache": True}, "--disable-radix-cache"),
        ({"disable-radix-cache": False}, ""),
        ({"no-enable-tf32-matmul": True}, "--no-enable-tf32-matmul"),
        ({"mem-fraction-static": 0.85}, "--mem-fraction-static 0.85"),
        ({"cuda-graph-bs-decode": [1, 2]}, "--cuda-graph-bs-decode 1 2"),
        ({"default-chat-template-kwargs": {"enable_thinking": False}}, '--default-chat-template-kwargs {"enable_thinking":false}'),
        ({"something-new": 5}, "--something-new 5"),
        ({"port": None}, ""),
    ],
)  # fmt: skip
def test_flags_are_rendered_as_words_and_parsed_back(value: dict[str, Any], words: str) -> None:
    assert " ".join(flags.argv(value)) == words
    parsed = flags.parse_command(["sglang", "serve", "--model-path", "/models/a", *flags.argv(value)])
    assert parsed.model == "/models/a"
    assert flags.argv(parsed.flags) == flags.argv(value)


@pytest.mark.parametrize(
    "words",
    [
        "sglang serve /m --port=30001 --sleep-on-idle",
        "python3 -m sglang.launch_server --model /m --port 30001 --sleep-on-idle",
        "/usr/local/bin/sglang serve --port 30001 --sleep-on-idle --model-path=/m",
    ],
)
def test_foreign_commands_are_parsed(words: str) -> None:
    assert flags.parse_command(words.split()) == Command("/m", {"port": 30001, "sleep-on-idle": True})


def test_a_command_listens_on_all_addresses_and_has_metrics() -> None:
    assert engine.get_engine("sglang").flags.ENTRYPOINT == ("sglang", "serve")
    words = " ".join(flags.command("/models/a", {"served-model-name": "a"}))
    assert words == "--model-path /models/a --host 0.0.0.0 --port 30000 --enable-metrics --served-model-name a"
    assert "--port 9000" in " ".join(flags.command("/models/a", {"port": 9000}))
    assert "--enable-metrics" not in flags.command("/models/a", {"enable-metrics": False})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("context-length", "128q", "must be a whole number, such as 131072 or 128Ki, got '128q'"),
        ("max-running-requests", 0, "must be at least 1, got 0"),
        ("max-running-requests", "4k", "must be a whole number, got '4k'"),
        ("chunked-prefill-size", -2, "must be at least -1, got -2"),
        ("mem-fraction-static", 85, "must be above 0 and below 1, got 85"),
        ("mem-fraction-static", "most", "must be a number, got 'most'"),
        ("port", 70000, "must be at most 65535, got 70000"),
        ("kv-cache-dtype", "fp8", "must be one of auto, fp8_e5m2, fp8_e4m3, mxfp8, bf16, bfloat16, nvfp4, fp4_mx_block16, got 'fp8'"),
        ("sleep-on-idle", "yes", "is a switch and takes no value, got 'yes'"),
        ("context-length", True, "needs a value, got true"),
        ("context-length", [1, 2], "takes one value, got [1, 2]"),
        ("default-chat-template-kwargs", "a=1", "must be a mapping, as YAML or as JSON, got 'a=1'"),
    ],
)  # fmt: skip
def test_invalid_values_are_described(name: str, value: Any, problem: str) -> None:
    assert flags.find_value_problem({name: value}, name) == problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context-length", "128k"),
        ("chunked-prefill-size", -1),
        ("mem-fraction-static", "0.85"),
        ("attention-backend", "of-the-next-release"),
        ("kv-cache-dtype", "fp8_e4m3"),
        ("sleep-on-idle", True),
        ("a-new-flag", object()),
    ],
)
def test_valid_values_are_accepted(name: str, value: Any) -> None:
    assert flags.find_value_problem({name: value}, name) == ""


def test_name_port_context_and_chunk_size_are_read_from_flags() -> None:
    assert flags.served_names({}, "/models/a") == ("/models/a",)
    assert flags.served_names({"served-model-name": "a"}, "/models/a") == ("a",)
    assert (flags.port({}), flags.port({"port": "30001"})) == (30000, 30001)
    assert (flags.context({}), flags.context({"context-length": "128Ki"})) == (None, 131072)
    assert (flags.context({"context-length": "25.6k"}), flags.chunk_size({"chunked-prefill-size": -1})) == (25600, 0)


def format_help(options: Iterable[Option]) -> str:
    """Return argparse's help with these options."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    for option in options:
        if option.kind == "switch":
            parser.add_argument(*option.words, action="store_true", help="A switch.")
        elif option.kind == "both":
            parser.add_argument(*option.words, action=argparse.BooleanOptionalAction, help="A switch, see --port.")
        else:
            count = "+" if option.kind == "list" else None
            parser.add_argument(*option.words, choices=option.choices or None, nargs=count, help="A value.\n--x y")
    return parser.format_help()


def test_the_help_of_an_image_lists_its_options() -> None:
    options = flags.TABLE.newest_options
    language = [option for name, option in options.items() if name != "model-type"]
    notice = "Use `sglang serve --model-type BACKEND --help` for backend-specific help.\n"
    image_help = "usage: sglang serve [-h]\n\noptions:\n  --num-gpus NUM_GPUS\n"
    listed_options = image.parse_options("INFO something imported\n" + notice + format_help(language) + image_help)
    assert listed_options == dict(image.reference_shapes())
    changed = [option for name, option in options.items() if name != "sleep-on-idle"]
    changed.append(Option("int", name="a-new-flag", words=("--a-new-flag",)))
    difference = image.difference(image.parse_options(format_help(changed)))
    assert difference == {"like": flags.SOURCE_RELEASE, "differ": {"sleep-on-idle": None, "a-new-flag": "1"}}
    assert "sleep-on-idle" not in image.restore_options(difference)
    assert image.restore_options(difference)["a-new-flag"] == "1"
    assert image.parse_options("usage: other\n  --help  show\n") == {}


def test_the_version_is_parsed_from_the_printed_text() -> None:
    text = "warning: no GPU\nsglang version: 0.5.23\ngit revision: abcdef1\n"
    assert image.parse_version(text) == "0.5.23"
    assert image.parse_version("sglang: 0.5.23") is None
