"""Output and exit code of commands for a broken Spark over ssh, compared with states.yml and with a client's request."""

import re
from pathlib import Path

import pytest
import yaml

from tests.bed.conftest import BedProject, CommandResult
from tests.bed.test_faults import QUERY_COMMAND
from tests.cells import join_whitespace, matches_cell

TABLE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("states.yml").read_text())
READ_COLUMNS = ("status", "health", "verify", "diagnose", "plan")
#: commands that exit with 0 only if clients are served
PROMISING_COLUMNS = ("health", "verify", "deploy")


def is_served(lab: BedProject) -> bool:
    """Return True if a client gets a token."""
    return lab.on("spark1", f"{QUERY_COMMAND} | grep -c choices") == "1"


def find_mismatches(lab: BedProject, column: str, cell: str) -> list[str]:
    """Return the differences of a command from its cell and from a client's result."""
    result = lab.run(column, "--host", "spark1")
    screen = result.out + result.err
    mismatches = []
    if not matches_cell(cell, result.code, screen):
        mismatches.append(f"{column}: expected {cell!r}, got {result.code}: {join_whitespace(screen)}")
    if column in PROMISING_COLUMNS and is_green(result) and not is_served(lab):
        mismatches.append(f"{column} exited with 0, and a client gets nothing: {join_whitespace(screen)}")
    return mismatches


def is_green(result: CommandResult) -> bool:
    return result.code == 0 and not re.search(r"\bstarting\b", result.out)


@pytest.mark.parametrize("state", TABLE)
def test_commands_report_the_state(lab: BedProject, state: str) -> None:
    row = TABLE[state]
    lab.on("spark1", "rm -f .local/state/sparkwright/health*")  # earlier checks change the output
    lab.run("deploy", "--host", "spark1")
    assert is_served(lab), "the server before it is broken"
    lab.on("spark1", row["break"])
    mismatches = [item for column in READ_COLUMNS for item in find_mismatches(lab, column, row[column])]
    lab.on("spark1", row.get("repair", "true"))
    mismatches += find_mismatches(lab, "deploy", row["deploy"])
    assert not mismatches, "\n".join(mismatches)
    assert is_served(lab)


def test_unreachable_host_fails_every_command(lab: BedProject) -> None:
    (lab.root / "hosts/spark1.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: bed\n")
    for command in (*READ_COLUMNS, "deploy"):
        result = lab.run(command, "--host", "spark1")
        assert (result.code, "refuses connections" in result.out + result.err) == (3, True), f"{command}: {result}"
