"""A host with a deployed server for each file of tests; the results of the fault matrix are printed at the end."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import SandboxProject
from tests.faults.bench import Bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        folder = Path(tempfile.mkdtemp(prefix="fault-"))
        value = Bench(SandboxProject(folder))
        value.project.deployed()
        yield value
        value.close()
        shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    cells: dict[tuple[str, str], str] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "cell" and report.when == "call":
                    step, fault, serves = json.loads(value)
                    cells[step, fault] = serves if outcome == "passed" else f"{serves}!"
    if not cells:
        return
    from tests.faults.test_matrix import COLUMNS, TABLE

    steps = [row.split("|")[0].strip() for row in TABLE.strip().splitlines()]
    width = max(map(len, steps))
    terminalreporter.section("who serves after a fault before each step (! not as expected, . not run)")
    terminalreporter.write_line(f"{'':<{width}}  " + "  ".join(f"{column:>6}" for column in COLUMNS))
    for step in steps:
        row = "  ".join(f"{cells.get((step, column), '.'):>6}" for column in COLUMNS)
        terminalreporter.write_line(f"{step:<{width}}  {row}")
