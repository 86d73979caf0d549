"""The recorded options of `vllm serve` match those of the real parser and config classes."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.real_engine.engine import ENVIRONMENT, Engine
from tests.real_engine.keep import DATA

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "files"),
    [("ask_parser.py", ["parser.json", "flag-values.json"]), ("ask_speculation.py", ["speculative-config.json"])],
)
def test_the_engine_matches_the_record(engine: Engine, tmp_path: Path, script: str, files: list[str]) -> None:
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(HERE.parents[1] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([engine.python, HERE / script, tmp_path], env=env, check=True, timeout=900)
    for name in files:
        assert (tmp_path / name).read_text() == (DATA / name).read_text(), f"{name} differs from this engine's answers"
