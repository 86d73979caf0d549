"""The output and exit code of each command in each state of a server, and what a client gets. The table is states.yml."""

from collections.abc import Iterator

import pytest

from tests.e2e import states
from tests.e2e.conftest import CommandResult, sandbox_project
from tests.e2e.states import COLUMNS, STATES, FaultySpark, load_table

#: the rows of `make test-all`; `make test-faults` runs all
QUICK_STATES = ("wedge", "engine-exits", "crash-loop", "removed-by-hand")


@pytest.fixture(scope="module")
def spark() -> Iterator[FaultySpark]:
    with sandbox_project() as project:
        project.deployed()
        yield FaultySpark(project)


def test_every_fault_has_a_row_and_every_command_a_cell() -> None:
    assert list(load_table()) == list(STATES)
    for state, row in load_table().items():
        assert list(row) == list(COLUMNS), state


@pytest.mark.parametrize(
    "state", [pytest.param(item, marks=() if item in QUICK_STATES else pytest.mark.whole) for item in STATES]
)
def test_each_command_says_what_is_so(spark: FaultySpark, state: str) -> None:
    row = load_table()[state]
    mismatches = states.find_mismatches(row, spark.observe(state, states.specified_columns(row)))
    assert not mismatches, "\n".join(mismatches)


@pytest.mark.parametrize(
    ("column", "code", "out", "client", "kept"),
    [
        ("health", 0, "ok: a token in 0.1 s", states.TOKENS, True),
        ("health", 0, "ok: a token in 0.1 s", states.NOTHING, False),
        ("health", 1, "wedged: no token arrived", states.NOTHING, True),
        ("checked", 0, "sandbox  ok  qwen", states.NOTHING, False),
        ("checked", 0, "sandbox  up  qwen  no token was asked for", states.NOTHING, True),
        ("restart", 0, "ok=16 changed=3", states.SLOW, False),
        ("plan", 0, "changed=0", states.NOTHING, True),  # a plan promises nothing to clients
    ],
)
def test_a_success_without_tokens_for_the_client_is_a_mismatch(
    column: str, code: int, out: str, client: str, kept: bool
) -> None:
    observation = states.Observation(CommandResult(code, out, ""), client)
    assert (not list(states.find_broken_promises(column, observation))) == kept
