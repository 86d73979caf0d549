"""The command line of the simulated vLLM has the options and the error messages of the real one."""

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
VERSION = "0.32.0"


def run_vllm(*words: str, version: str = VERSION) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "VLLM_VERSION": version}
    command = [sys.executable, "-m", "sparkwright.sandbox.vllm", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def refusal(*words: str, version: str = VERSION) -> StartError:
    with pytest.raises(StartError) as excinfo:
        parse_arguments(words, version)
    return excinfo.value


def test_the_option_table_is_generated_from_the_real_help() -> None:
    assert command_line.OPTIONS_PATH.read_text() == serve_help.HEADER + "\n".join(serve_help.format_rows(REAL)) + "\n"


def test_help_lists_the_options_of_the_real_help() -> None:
    result = run_vllm("serve", "--help=all")
    assert (result.returncode, result.stderr) == (0, "")
    printed = [serve_help.option_header(block) for block in serve_help.split_options(result.stdout)]
    assert printed == [serve_help.option_header(block) for block in serve_help.split_options(REAL)]


OPTIONS = {name: option for option in command_line.list_options(VERSION) for name in option.names}


@pytest.mark.parametrize("name", [name for name in OPTIONS if "help" not in name and name != "-h"])
def test_each_option_name_is_accepted(name: str) -> None:
    option = OPTIONS[name]
    value = option.choices[0] if option.choices else {"json": "{}", "switch": None}.get(option.kind, "1")
    required = ["--tool-call-parser", "hermes"] if "auto-tool-choice" in name else []
    parse_arguments([name, *([value] if value is not None else []), *required], VERSION)


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
def test_values_are_parsed_like_in_the_engine(words: list[str], key: str, value: object) -> None:
    assert parse_arguments(words, VERSION).values[key] == value


def test_an_unknown_argument_is_refused_with_the_real_message() -> None:
    folder = serve_help.HELP.parent / "err-unknown-arg"
    error = refusal("/models/tiny-llama", "--host", "127.0.0.1", "--enforce-eager", "--no-such-flag")
    assert str(error) in (folder / "server.log").read_text()
    assert error.code == json.loads((folder / "result.json").read_text())["exit_code"]


#: option, a version that accepts it, a version that refuses it
OPTION_VERSIONS = [
    ("--calculate-kv-scales", "0.27.1", "0.28.0"),
    ("--disable-chunked-prefill", "0.33.0", "0.32.0"),
    ("--swap-space=4", "0.17.1", "0.18.0"),
    ("--mamba-cache-mode=align", "0.15.0", "0.14.1"),
    ("--mamba-cache-mode=all", "0.31.0", "0.33.0"),
    ("--default-chat-template-kwargs={}", "0.14.0", "0.13.0"),
]


@pytest.mark.parametrize(("flag", "accepting", "refusing"), OPTION_VERSIONS, ids=[row[0] for row in OPTION_VERSIONS])
def test_an_option_is_accepted_only_by_versions_that_have_it(flag: str, accepting: str, refusing: str) -> None:
    parse_arguments([flag], accepting)
    assert refusal(flag, version=refusing).code == 2


#: cases of `--config` were tried with vLLM 0.32.0, or follow from its source
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
def test_the_key_is_read_from_the_file_and_hidden_in_the_log(folder: Path, words: tuple[str, ...]) -> None:
    arguments = parse_words(folder, *words)
    assert (arguments.model, arguments.values["api_key"]) == ("/m", [KEY])
    assert KEY not in str(arguments.non_default(VERSION)) and "config" not in arguments.non_default(VERSION)


def test_the_command_line_takes_precedence_over_the_file(folder: Path) -> None:
    assert parse_words(folder, "/m", "--config", "/e.yaml", "--api-key", "other").values["api_key"] == ["other"]


@pytest.mark.parametrize("key", ["short", "-" + "a" * 20, "a b" * 10, "é" * 20, "a" * 600, "a\n" * 10, ""])
def test_a_key_that_a_header_or_parser_would_reject_is_invalid(key: str) -> None:
    assert not is_valid_key(key)


def test_a_rendered_key_file_is_parsed_to_the_same_key() -> None:
    key = "aZ9._~+/=-" * 3
    assert is_valid_key(key)
    assert http.parse_key_file(http.render_key_file(key)) == key
    assert [http.parse_key_file(text) for text in ("", "api-key: {", "other: x", "api-key: 7")] == [""] * 4
