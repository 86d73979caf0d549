"""Processes whose whole cost is known."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: a tool that has not come back by then hangs
TIMEOUT_S = 180


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[str, float]:
    """What a command prints, and the CPU time of it and its children, seconds; one that fails ends the benchmark."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        limited = ["timeout", str(TIMEOUT_S), *words]
        process = subprocess.Popen(
            limited, cwd=folder, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), errors.seek(0)
        said = out.read()
        if process.returncode:
            sys.exit(f"{' '.join(words[:3])} ended with {process.returncode}: {(said + errors.read())[-1500:]}")
    return said, usage.ru_utime + usage.ru_stime
