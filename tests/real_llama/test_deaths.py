"""Failed starts of llama-server, and lint's findings about the same flags."""

from pathlib import Path

import pytest

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.llama_cpp import advice, flags
from tests.real_llama import server as servers


@pytest.fixture
def half(tiny: Path, tmp_path: Path) -> Path:
    """The first half of the tiny model."""
    path = tmp_path / "half.gguf"
    path.write_bytes(tiny.read_bytes()[: tiny.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    ("words", "model", "line", "rule"),
    [
        ("--max-model-len 512", "whole", "error: invalid argument: --max-model-len", "unknown-flag"),
        ("-c 512 -ctk q9", "whole", 'error while handling argument "-ctk": Unsupported cache type: q9', "flag-value"),
        ("-c 512 -ctv q8_0 -fa off", "whole", "failed to create_context with model", "quantised-v-cache"),
        ("-c 512", "half", "data is not within the file bounds, model is corrupted or incomplete", ""),
        ("-c 512", "missing", "No such file or directory", ""),
        ("-c 512", "folder", "exiting due to model loading error", ""),
    ],
)
def test_a_failed_start_exits_with_1_and_logs_the_cause(
    tiny: Path, half: Path, tmp_path: Path, words: str, model: str, line: str, rule: str
) -> None:
    path = {"whole": tiny, "half": half, "missing": tmp_path / "missing.gguf", "folder": tmp_path}[model]
    with servers.running_server(tmp_path, "-m", str(path), *words.split()) as server:
        assert not server.wait_until_served()
        assert server.exit_code == 1
        assert line in server.log
    flag_values = {"model": "a.gguf", "n-gpu-layers": "all", **flags.parse_command(words.split()).flags}
    findings = advice.check(ServerRequest(flag_values), {}, advice.version("b11549"))
    assert [finding.rule for finding in findings if finding.severity == "error"] == ([rule] if rule else [])
