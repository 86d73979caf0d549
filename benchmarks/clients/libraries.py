"""Clients that are functions: ours, and vLLM's. They run in a separate process, `child.py`."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import TOKENS, Absent, Report
from benchmarks.common import TOP, Measurement, measure
from sparkwright.measure import figures

#: time limit of a client
TIMEOUT_S = 180


def run_client(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> Measurement:
    return measure(["timeout", str(TIMEOUT_S), *words], folder, {**os.environ, **env})


@dataclass(frozen=True)
class Library:
    """A library. name: its function in child.py. python: path of an interpreter that can import it."""

    name: str
    python: str

    def run(self, url: str, streams: int, folder: Path) -> Report:
        """Run this many concurrent streams, one request each."""
        words = [self.python, str(Path(__file__).parent / "child.py"), self.name, url, str(streams), str(TOKENS)]
        run = run_client(words, folder, {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(TOP / "src")})
        result = json.loads(run.output.strip().splitlines()[-1])
        gaps_s = result["gaps_s"] = sorted(result["gaps_s"])
        return Report(**result, cpu_s=run.cpu_s, itl_p99_s=figures.percentile(gaps_s, 99), largest_s=gaps_s[-1])


def ours() -> Library:
    """Return sparkwright.measure of this checkout."""
    return Library("ours", sys.executable)


def vllm() -> Library:
    """Return vLLM's request function. Raises Absent."""
    python = Path(os.environ.get("ENGINE_PYTHON", TOP / ".engine/0.32.0/venv/bin/python"))
    if not python.exists():
        raise Absent(f"{python} does not exist: run `make test-engine`, or set ENGINE_PYTHON to a Python with vLLM")
    return Library("vllm", str(python))
