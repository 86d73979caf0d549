"""An image tells its build and its options; what is kept of them is what differs from the build that is known."""

from pathlib import Path

import pytest

from sparkwright.engines import engine
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.llama_cpp import advice, flags, image

DATA = Path(__file__).parents[2] / "data" / "llama.cpp"
OLD = (DATA / f"help-b{flags.OLDEST_BUILD}.txt").read_text()
NEW = (DATA / f"help-b{flags.NEWEST_BUILD}.txt").read_text()
#: in the help, not among what a recipe can say
EXITING_OPTIONS = {"usage", "version", "cache-list", "list-devices", "completion-bash"}


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("version: 6132 (50aa938)\nbuilt with GNU 13.3.0 for Linux aarch64", "b6132"),
        ("ggml_cuda_init: found 1 CUDA devices\nversion: 0.1.0-dev (build 10434, commit 7e4c0a9)\nbuilt with GNU", "b10434"),
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)", None),
        ("exec format error", None),
        ("no version here: 7 (x)", None),
    ],
)  # fmt: skip
def test_the_build_is_parsed_from_the_printed_version(text: str, build: str | None) -> None:
    assert engine.get_engine("llama_cpp").image is image
    assert image.parse_version(text) == build


@pytest.mark.parametrize("text", [OLD, NEW])
def test_options_are_stored_as_a_difference(text: str) -> None:
    difference = image.difference(image.parse_options(text))
    assert image.restore_options(difference) == image.parse_options(text)
    assert len(difference["differ"]) < 30
    assert set(image.difference(image.parse_options(NEW))["differ"]) == EXITING_OPTIONS
    assert image.restore_options(None) == {} == image.restore_options({"like": "b1", "differ": {}})
    assert image.parse_options("nothing of the kind") == {}


def test_the_options_of_the_image_outrank_the_table() -> None:
    flag_values = {"model": "a.gguf", "ctx-size": 4096, "n-gpu-layers": "all", "mmap": False}
    severities = {
        build: [
            item.severity
            for item in advice.check(ServerRequest(flag_values), {}, None, image.parse_options(text))
            if item.rule == "unknown-flag"
        ]
        for build, text in ((flags.OLDEST_BUILD, OLD), (flags.NEWEST_BUILD, NEW))
    }
    assert severities == {flags.OLDEST_BUILD: [], flags.NEWEST_BUILD: ["error"]}


@pytest.mark.parametrize(
    ("entry", "takes"),
    [("--switch \n    turns it on", 0), ("--switch", 0), ("--pair A B", 2), ("--choice <a b>   one of them", 1)],
)
def test_the_number_of_values_is_the_number_of_placeholders(entry: str, takes: int) -> None:
    assert [option.takes for option in image.parse_help(entry).values()] == [takes]
