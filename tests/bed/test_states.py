"""What the commands say of a broken Spark over ssh, how they end, and whether a client would agree. The table is states.yml."""

import re
from pathlib import Path

import pytest
import yaml

from tests.bed.conftest import Lab, Said
from tests.bed.test_faults import ASK
from tests.cells import join_whitespace, matches_cell

pytestmark = pytest.mark.bed

TABLE: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("states.yml").read_text())
READING = ("status", "health", "verify", "diagnose", "plan")
#: whose exit code 0 promises that a client is served
PROMISES = ("health", "verify", "deploy")


def served(lab: Lab) -> bool:
    """Whether a client gets a token."""
    return lab.on("spark1", f"{ASK} | grep -c choices") == "1"


def wrong(lab: Lab, column: str, cell: str) -> list[str]:
    """What a command says otherwise than its cell, and a promise that is not kept."""
    result = lab.run(column, "--host", "spark1")
    screen = result.out + result.err
    found = (
        []
        if matches_cell(cell, result.code, screen)
        else [f"{column}: expected {cell!r}, got {result.code}: {join_whitespace(screen)}"]
    )
    if column in PROMISES and green(result) and not served(lab):
        found.append(f"{column} exited with 0, and a client gets nothing: {join_whitespace(screen)}")
    return found


def green(said: Said) -> bool:
    return said.code == 0 and not re.search(r"\bstarting\b", said.out)


@pytest.mark.parametrize("state", TABLE)
def test_each_command_says_what_is_so(lab: Lab, state: str) -> None:
    row = TABLE[state]
    lab.on("spark1", "rm -f .local/state/sparkwright/health*")  # what was seen before is no part of the table
    lab.run("deploy", "--host", "spark1")
    assert served(lab), "the server is there before it is broken"
    lab.on("spark1", row["break"])
    found = [item for column in READING for item in wrong(lab, column, row[column])]
    lab.on("spark1", row.get("repair", "true"))
    found += wrong(lab, "deploy", row["deploy"])
    assert not found, "\n".join(found)
    assert served(lab)


def test_a_host_that_is_away_is_unreachable_to_every_command(lab: Lab) -> None:
    (lab.root / "hosts/spark1.yml").write_text("address: 127.0.0.1\nport: 1\nrecipe: bed\n")
    for command in (*READING, "deploy"):
        result = lab.run(command, "--host", "spark1")
        assert (result.code, "refuses connections" in result.out + result.err) == (3, True), (
            command,
            result.out,
            result.err,
        )
