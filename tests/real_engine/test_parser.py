"""What is known of the options of `vllm serve`, asked of the real one again: its parser and its config classes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.real_engine.engine import ENVIRONMENT, Engine, EngineMissing, installed
from tests.real_engine.keep import DATA

pytestmark = pytest.mark.engine
SOURCE = Path(__file__).parents[2] / "src"
ASK = Path(__file__).parent / "ask_parser.py"


@pytest.fixture(scope="module")
def engine(pytestconfig: pytest.Config) -> Engine:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return installed()
    except EngineMissing as error:
        pytest.exit(str(error), returncode=1)


def test_the_parser_says_what_was_kept_of_it(engine: Engine, tmp_path: Path) -> None:
    env = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [str(engine.python), str(ASK), str(tmp_path)]
    subprocess.run(line, env=env, check=True, timeout=900)
    for name in ("parser.json", "flag-values.json"):
        assert (tmp_path / name).read_text() == (DATA / name).read_text(), f"{name} is no longer what this engine says"
