"""Failed starts of llama-server, their explanations, and lint's findings about the same flags."""

from pathlib import Path

import pytest

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.llama_cpp import advice, flags
from sparkwright.engines.llama_cpp.log import LOG
from sparkwright.engines.log.reader import read_log
from tests.real_llama import server as servers


@pytest.fixture
def half(tiny: Path, tmp_path: Path) -> Path:
    """The first half of the tiny model."""
    path = tmp_path / "half.gguf"
    path.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    ("words", "model", "failure", "rule"),
    [
        ("--max-model-len 512", "whole", "unknown argument: --max-model-len.", "unknown-flag"),
        ("-c 512 -ctk q9", "whole", "the engine does not accept q9 for -ctk.", "flag-value"),
        (
            "-c 512 -ctv q8_0 -fa off",
            "whole",
            "a quantized V cache (cache-type-v) needs flash-attn",
            "quantised-v-cache",
        ),
        ("-c 512", "half", "the model's file is truncated: a tensor lies beyond its end.", ""),
        ("-c 512", "missing", "missing.gguf in the container: No such file or directory.", ""),
        ("-c 512", "folder", "the model is a folder or an empty file, not a GGUF file.", ""),
    ],
)
def test_a_failed_start_is_explained(
    tiny: Path, half: Path, tmp_path: Path, words: str, model: str, failure: str, rule: str
) -> None:
    path = {"whole": tiny, "half": half, "missing": tmp_path / "missing.gguf", "folder": tmp_path}[model]
    with servers.running_server(tmp_path, "-m", str(path), *words.split()) as server:
        assert not server.wait_until_served()
        assert server.exit_code == 1
        assert failure in str(read_log(server.log, LOG).failure.value)
    flag_values = {"model": "a.gguf", "n-gpu-layers": "all", **flags.parse_command(words.split()).flags}
    findings = advice.check(ServerRequest(flag_values), {}, advice.version("b11549"))
    assert [finding.rule for finding in findings if finding.severity == "error"] == ([rule] if rule else [])
