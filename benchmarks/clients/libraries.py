"""Clients that are functions: ours, and vLLM's. They run in a process of their own, `child.py`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import TOKENS, Absent, Said, process
from sparkwright.measure import figures

TOP = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Library:
    """name: in child.py. python: that has it."""

    name: str
    python: str

    def run(self, url: str, streams: int, folder: Path) -> Said:
        """Run this many concurrent streams, one request each."""
        words = [self.python, str(Path(__file__).parent / "child.py"), self.name, url, str(streams), str(TOKENS)]
        said, cpu_s = process.run(words, folder, {"VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(TOP / "src")})
        found = json.loads(said.strip().splitlines()[-1])
        gaps_s = found["gaps_s"] = sorted(found["gaps_s"])
        return Said(**found, cpu_s=cpu_s, itl_p99_s=figures.percentile(gaps_s, 99), largest_s=gaps_s[-1])


def ours() -> Library:
    """Return sparkwright.measure of this checkout."""
    return Library("ours", sys.executable)


def vllm() -> Library:
    """Return vLLM's request function. Raises Absent."""
    python = Path(os.environ.get("ENGINE_PYTHON", TOP / ".engine/0.32.0/venv/bin/python"))
    if not python.exists():
        raise Absent(
            f"there is no {python}: `make test-engine` makes it, or ENGINE_PYTHON names a Python that has vLLM"
        )
    return Library("vllm", str(python))
