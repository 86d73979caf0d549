"""The recorded options of `vllm serve` match those of the real parser and config classes."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.real_engine.engine import ENVIRONMENT, Engine
from tests.real_engine.keep import DATA

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("newest")]
SOURCE = Path(__file__).parents[2] / "src"
ASK = Path(__file__).parent / "ask_parser.py"
ASK_SPECULATION = Path(__file__).parent / "ask_speculation.py"


def test_the_parser_matches_its_record(engine: Engine, tmp_path: Path) -> None:
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [str(engine.python), str(ASK), str(tmp_path)]
    subprocess.run(line, env=env, check=True, timeout=900)
    for name in ("parser.json", "flag-values.json"):
        assert (tmp_path / name).read_text() == (DATA / name).read_text(), f"{name} is no longer what this engine says"


def test_the_speculative_config_matches_its_record(engine: Engine, tmp_path: Path) -> None:
    env = {**os.environ, **ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([str(engine.python), str(ASK_SPECULATION), str(tmp_path)], env=env, check=True, timeout=300)
    name = "speculative-config.json"
    assert (tmp_path / name).read_text() == (DATA / name).read_text(), f"{name} is no longer what this engine says"
