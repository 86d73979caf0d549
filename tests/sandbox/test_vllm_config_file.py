"""The stand-in reads --config as vLLM 0.32.0 does; each case was tried on the real one, or read in its parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.engines.http import valid
from sparkwright.engines.vllm import http
from sparkwright.sandbox.vllm import command_line
from sparkwright.sandbox.vllm.command_line import with_config_file

VERSION = "0.32.0"
KEY = "spk-0123456789abcdef"


def parsed(folder: Path, *words: str) -> command_line.Arguments:
    return command_line.parse(with_config_file(words, lambda inside: folder / inside.lstrip("/")), VERSION)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "e.yaml").write_text(http.text(KEY))
    return tmp_path


@pytest.mark.parametrize(
    "words", [("/m", "--config", "/e.yaml"), ("--model", "/m", "--port", "81", "--config", "/e.yaml")]
)
def test_the_key_comes_from_the_file_and_the_log_hides_it(folder: Path, words: tuple[str, ...]) -> None:
    found = parsed(folder, *words)
    assert (found.model, found.values["api_key"]) == ("/m", [KEY])
    assert KEY not in str(found.not_default(VERSION)) and "config" not in found.not_default(VERSION)


def test_a_flag_outranks_the_file(folder: Path) -> None:
    assert parsed(folder, "/m", "--config", "/e.yaml", "--api-key", "other").values["api_key"] == ["other"]


def test_a_false_switch_is_honoured(folder: Path) -> None:
    (folder / "e.yaml").write_text(
        'enable-chunked-prefill: false\nserved-model-name: ["a", "b"]\n# a note: of mine\nseed: 7\n'
    )
    found = parsed(folder, "/m", "--config", "/e.yaml")
    assert found.values == {"enable_chunked_prefill": False, "served_model_name": ["a", "b"], "seed": 7}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/m", "--config", "/e.yaml", "--config", "/e.yaml"), "More than one config file specified!"),
        (("/m", "--config"), "No config file specified!"),
        (("/m", "--config", "/e.json"), "Config file must be of a yaml/yml type. json supplied"),
        (("/m", "--config", "/not-here.yaml"), "FileNotFoundError"),
        (("--port", "81", "--config", "/e.yaml"), "No model specified!"),
    ],
)
def test_what_the_real_one_refuses(folder: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(command_line.Refused, match=said):
        parsed(folder, *words)


@pytest.mark.parametrize("key", ["short", "-" + "a" * 20, "a b" * 10, "é" * 20, "a" * 600, "a\n" * 10, ""])
def test_a_key_that_no_header_or_parser_takes_is_none(key: str) -> None:
    assert not valid(key)


def test_a_key_is_read_back_as_it_was_written() -> None:
    key = "aZ9._~+/=-" * 3
    assert valid(key)
    assert http.key_of(http.text(key)) == key
    assert [http.key_of(text) for text in ("", "api-key: {", "other: x", "api-key: 7")] == [""] * 4
