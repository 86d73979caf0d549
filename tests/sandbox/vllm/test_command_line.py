"""The stand-in's command line accepts the options of the real one, and refuses with its messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkwright.engines.http import is_valid_key
from sparkwright.engines.vllm import http
from sparkwright.sandbox.serving.process import StartError
from sparkwright.sandbox.vllm import command_line
from sparkwright.sandbox.vllm.command_line import expand_config_file, parse_arguments
from tests.sandbox.vllm import serve_help

SOURCE = Path(serve_help.__file__).parents[3] / "src"
REAL = serve_help.HELP.read_text()
NOW = "0.32.0"


def run_vllm(*words: str, version: str = NOW) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "VLLM_VERSION": version}
    line = [sys.executable, "-m", "sparkwright.sandbox.vllm", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=30, check=False)


def refusal(*words: str, version: str = NOW) -> StartError:
    with pytest.raises(StartError) as excinfo:
        parse_arguments(words, version)
    return excinfo.value


def test_the_table_of_flags_is_the_real_help_and_nothing_else() -> None:
    assert command_line.OPTIONS_PATH.read_text() == serve_help.HEADER + "\n".join(serve_help.format_rows(REAL)) + "\n"


def test_the_stand_in_prints_the_real_helps_options() -> None:
    result = run_vllm("serve", "--help=all")
    assert (result.returncode, result.stderr) == (0, "")
    printed = [serve_help.option_header(block) for block in serve_help.split_options(result.stdout)]
    assert printed == [serve_help.option_header(block) for block in serve_help.split_options(REAL)]


def test_it_says_its_images_version() -> None:
    for version in (NOW, "0.19.2"):
        result = run_vllm("--version", version=version)
        assert (result.returncode, result.stdout) == (0, f"{version}\n")


@pytest.mark.parametrize(
    "name",
    [name for option in command_line.list_options(NOW) for name in option.names if "help" not in name and name != "-h"],
)
def test_each_spelling_is_taken(name: str) -> None:
    option = next(option for option in command_line.list_options(NOW) if name in option.names)
    value = option.choices[0] if option.choices else {"json": "{}", "switch": None}.get(option.kind, "1")
    more = ["--tool-call-parser", "hermes"] if "auto-tool-choice" in name else []
    parse_arguments([name, *([value] if value is not None else []), *more], NOW)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["-O3"], "optimization_level", 3),
        (["--max_num_seqs=8"], "max_num_seqs", 8),
        (["--max-model-len", "4k"], "max_model_len", 4000),
        (["--no-enable-log-requests"], "enable_log_requests", False),
        (["--served-model-name", "a", "b"], "served_model_name", ["a", "b"]),
        (["-cc.mode=3", "-cc.pass_config.fuse", "true"], "compilation_config", {"mode": 3, "pass_config": {"fuse": True}}),
    ],
)  # fmt: skip
def test_values_are_read_as_the_engine_does(words: list[str], key: str, value: object) -> None:
    assert parse_arguments(words, NOW).values[key] == value


def test_an_unknown_argument_is_refused_as_the_real_log_has_it() -> None:
    folder = serve_help.HELP.parent / "err-unknown-arg"
    refused = refusal("/models/tiny-llama", "--host", "127.0.0.1", "--enforce-eager", "--no-such-flag")
    assert str(refused) in (folder / "server.log").read_text()
    assert refused.code == json.loads((folder / "result.json").read_text())["exit_code"]


#: flag, a version that takes it, one that does not
LIVED = [
    ("--calculate-kv-scales", "0.27.1", "0.28.0"),
    ("--disable-chunked-prefill", "0.33.0", "0.32.0"),
    ("--swap-space=4", "0.17.1", "0.18.0"),
    ("--mamba-cache-mode=align", "0.15.0", "0.14.1"),
    ("--mamba-cache-mode=all", "0.31.0", "0.33.0"),
    ("--default-chat-template-kwargs={}", "0.14.0", "0.13.0"),
]


@pytest.mark.parametrize(("flag", "knows", "refuses"), LIVED, ids=[row[0] for row in LIVED])
def test_a_flag_is_known_while_it_lived(flag: str, knows: str, refuses: str) -> None:
    parse_arguments([flag], knows)
    assert refusal(flag, version=refuses).code == 2


# The stand-in reads --config as vLLM 0.32.0 does; each case was tried on the real one, or read in its parser.


VERSION = "0.32.0"
KEY = "spk-0123456789abcdef"


def parse_words(folder: Path, *words: str) -> command_line.Arguments:
    return command_line.parse_arguments(expand_config_file(words, lambda inside: folder / inside.lstrip("/")), VERSION)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "e.yaml").write_text(http.render_key_file(KEY))
    return tmp_path


@pytest.mark.parametrize(
    "words", [("/m", "--config", "/e.yaml"), ("--model", "/m", "--port", "81", "--config", "/e.yaml")]
)
def test_the_key_comes_from_the_file_and_the_log_hides_it(folder: Path, words: tuple[str, ...]) -> None:
    arguments = parse_words(folder, *words)
    assert (arguments.model, arguments.values["api_key"]) == ("/m", [KEY])
    assert KEY not in str(arguments.non_default(VERSION)) and "config" not in arguments.non_default(VERSION)


def test_a_flag_outranks_the_file(folder: Path) -> None:
    assert parse_words(folder, "/m", "--config", "/e.yaml", "--api-key", "other").values["api_key"] == ["other"]


@pytest.mark.parametrize("key", ["short", "-" + "a" * 20, "a b" * 10, "é" * 20, "a" * 600, "a\n" * 10, ""])
def test_a_key_that_no_header_or_parser_takes_is_none(key: str) -> None:
    assert not is_valid_key(key)


def test_a_key_is_read_back_as_it_was_written() -> None:
    key = "aZ9._~+/=-" * 3
    assert is_valid_key(key)
    assert http.parse_key_file(http.render_key_file(key)) == key
    assert [http.parse_key_file(text) for text in ("", "api-key: {", "other: x", "api-key: 7")] == [""] * 4
