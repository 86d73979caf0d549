"""The build and the options of an image; the options are stored as a difference from a known build."""

from pathlib import Path

import pytest

from sparkwright.engines import engine
from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.llama_cpp import advice, flags, image

DATA = Path(__file__).parents[2] / "data" / "llama.cpp"
OLD = (DATA / f"help-b{flags.OLDEST_BUILD}.txt").read_text()
NEW = (DATA / f"help-b{flags.NEWEST_BUILD}.txt").read_text()
#: in the help, but not options of a recipe
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


@pytest.mark.parametrize("text", [OLD, NEW], ids=["oldest build", "newest build"])
def test_options_are_stored_as_a_difference(text: str) -> None:
    difference = image.difference(image.parse_options(text))
    assert image.restore_options(difference) == image.parse_options(text)
    assert set(difference["differ"]) >= EXITING_OPTIONS and len(difference["differ"]) < 30
    assert text == OLD or set(difference["differ"]) == EXITING_OPTIONS


def test_missing_options_are_empty() -> None:
    assert image.restore_options(None) == {} == image.restore_options({"like": "b1", "differ": {}})
    assert image.parse_options("another text") == {}


@pytest.mark.parametrize(("text", "severities"), [(OLD, []), (NEW, ["error"])], ids=["oldest build", "newest build"])
def test_the_options_of_the_image_outrank_the_table(text: str, severities: list[str]) -> None:
    request = ServerRequest({"model": "a.gguf", "ctx-size": 4096, "n-gpu-layers": "all", "mmap": False})
    findings = advice.check(request, {}, None, image.parse_options(text))
    assert [finding.severity for finding in findings if finding.rule == "unknown-flag"] == severities


@pytest.mark.parametrize(
    ("entry", "values"),
    [("--switch \n    turns it on", 0), ("--switch", 0), ("--pair A B", 2), ("--choice <a b>   one of them", 1)],
)
def test_the_number_of_values_is_the_number_of_placeholders(entry: str, values: int) -> None:
    assert [option.value_count for option in image.parse_help(entry).values()] == [values]
