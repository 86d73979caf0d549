"""Faults by commands: what each says, how it ends, and whether a client would agree. The table is states.yml."""

from collections.abc import Iterator

import pytest

from tests.e2e import states
from tests.e2e.conftest import Said, fresh_desk
from tests.e2e.states import COLUMNS, STATES, Spark, table

#: the rows of `make test-all`; `make test-faults` goes through all of them
ALWAYS = ("wedge", "engine-exits", "crash-loop", "removed-by-hand")


@pytest.fixture(scope="module")
def spark() -> Iterator[Spark]:
    with pytest.MonkeyPatch.context() as patch, fresh_desk() as desk:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        desk.deployed()
        yield Spark(desk)


def test_every_fault_has_a_row_and_every_command_a_cell() -> None:
    assert list(table()) == list(STATES)
    for state, row in table().items():
        assert list(row) == list(COLUMNS), state


@pytest.mark.parametrize(
    "state", [pytest.param(item, marks=() if item in ALWAYS else pytest.mark.whole) for item in STATES]
)
def test_each_command_says_what_is_so(spark: Spark, state: str) -> None:
    row = table()[state]
    wrong = states.wrong(row, spark.observe(state, states.filled(row)))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("column", "code", "out", "client", "kept"),
    [
        ("health", 0, "ok: a token in 0.1 s", states.TOKENS, True),
        ("health", 0, "ok: a token in 0.1 s", states.NOTHING, False),
        ("health", 1, "wedged: no token arrived", states.NOTHING, True),
        ("checked", 0, "sandbox  ok  qwen", states.NOTHING, False),
        ("checked", 0, "sandbox  up  qwen  no token was asked for", states.NOTHING, True),
        ("restart", 0, "ok=16 changed=3", states.SLOW, False),
        ("plan", 0, "changed=0", states.NOTHING, True),  # it says what would change, and not who is served
    ],
)
def test_a_promise_that_no_client_agrees_with_is_told(
    column: str, code: int, out: str, client: str, kept: bool
) -> None:
    seen = states.Seen(Said(code, out, ""), client)
    assert (not list(states.broken(column, seen))) == kept
