"""The simulated vLLM in an image of the test bed: the copied files suffice, without other packages."""

import subprocess
import sys
from pathlib import Path

import pytest
from molecule.bed import bed


@pytest.mark.parametrize(
    ("arguments", "code", "result"),
    [
        (["--max-num-sequences", "8"], 2, "unrecognized arguments: --max-num-sequences"),
        (["--help"], 0, "usage: vllm serve"),
    ],
)
def test_arguments_are_parsed_without_other_packages(
    tmp_path: Path, arguments: list[str], code: int, result: str
) -> None:
    bed.copy_sandbox(tmp_path)
    start = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); runpy.run_module('sparkwright.sandbox.vllm', run_name='__main__')"
    program = [sys.executable, "-I", "-S", "-c", start, "serve", "--model", "/models/x", *arguments]
    completed = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert result in completed.stdout + completed.stderr and completed.returncode == code, completed.stderr[-2000:]
