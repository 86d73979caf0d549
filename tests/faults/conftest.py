"""Prints the fault matrix with its results at the end of the tests."""

import json
from typing import Any


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
