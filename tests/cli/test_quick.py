"""What the command spares at its start, and that nobody misses it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import sparkwright.cli
assert "asyncio" not in sys.modules and "unittest.mock" not in sys.modules, "imported for nothing"
from invoke import MockContext, Result
context = MockContext(run={"true": Result("said")})
assert context.run("true").stdout == "said"
context.run.assert_called_once_with("true")
"""


def test_a_command_starts_without_asyncio_and_a_mock_context_still_works() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
