"""Causes that end llama-server at its start, and lint's findings about the same recipes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.llama_cpp import advice, flags
from tests.real_llama import server as servers

Make = Callable[[Path, Path], Path]


def whole_model(tiny: Path, folder: Path) -> Path:
    return tiny


def half_model(tiny: Path, folder: Path) -> Path:
    """A download that broke off."""
    cut = folder / "half.gguf"
    cut.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    return cut


@pytest.mark.parametrize(
    ("words", "make", "line", "rule"),
    [
        ("--max-model-len 512", whole_model, "error: invalid argument: --max-model-len", "unknown-flag"),
        (
            "-c 512 -ctk q9",
            whole_model,
            'error while handling argument "-ctk": Unsupported cache type: q9',
            "flag-value",
        ),
        ("-c 512 -ctv q8_0 -fa off", whole_model, "failed to create_context with model", "quantised-v-cache"),
        ("-c 512", half_model, "data is not within the file bounds, model is corrupted or incomplete", ""),
        ("-c 512", lambda tiny, folder: folder / "nothere.gguf", "No such file or directory", ""),
        ("-c 512", lambda tiny, folder: folder, "exiting due to model loading error", ""),
    ],
)
def test_a_failed_start_exits_with_1_and_logs_the_cause(
    tiny: Path, tmp_path: Path, words: str, make: Make, line: str, rule: str
) -> None:
    with servers.running_server(tmp_path, "-m", str(make(tiny, tmp_path)), *words.split()) as server:
        assert not server.wait_until_served()
        assert server.exit_code == 1
        assert line in server.log
    flag_values = {"model": "a.gguf", "n-gpu-layers": "all", **flags.parse_command(words.split()).flags}
    errors = [
        item.rule
        for item in advice.check(ServerRequest(flag_values), {}, advice.version("b11549"))
        if item.severity == "error"
    ]
    assert errors == ([rule] if rule else [])
