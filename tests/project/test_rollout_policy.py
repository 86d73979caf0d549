"""Batch sizes of a rolling run, and the number of failures that stops it."""

import pytest

from sparkwright.errors import Refused
from sparkwright.project.rollout_policy import RolloutPolicy, parse_sizes

FOUR = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RolloutPolicy(), [8]),
        (RolloutPolicy(canary=1), [1, 8]),
        (RolloutPolicy(canary=1, serial=("25%",)), [1, 2, 2]),
        (RolloutPolicy(canary=2, serial=(3,)), [2, 3, 3]),
        (RolloutPolicy(serial=(1, "50%")), [1, 4, 4]),
    ],
)
def test_canary_precedes_the_batches(policy: RolloutPolicy, expected: list[int]) -> None:
    assert [policy.size(n, 8) for n in range(len(expected))] == expected


@pytest.mark.parametrize(
    ("policy", "n", "failed", "stops"),
    [
        (RolloutPolicy(serial=(4,)), 0, [], False),
        (RolloutPolicy(serial=(4,)), 0, ["b"], True),
        (RolloutPolicy(serial=(4,), max_fail_percentage=25), 0, ["b"], False),
        (RolloutPolicy(serial=(4,), max_fail_percentage=25), 0, ["b", "c"], True),
        (RolloutPolicy(serial=(4,), max_fail_percentage=100), 0, FOUR, True),
        (RolloutPolicy(canary=4, max_fail_percentage=90), 0, ["b"], True),
        (RolloutPolicy(canary=4, max_fail_percentage=90), 1, ["b"], False),
    ],
)
def test_failures_stop_a_run(policy: RolloutPolicy, n: int, failed: list[str], stops: bool) -> None:
    reason = policy.stop_reason(n, failed, FOUR, is_rolling=True)
    assert bool(reason) == stops
    assert all(name in reason for name in failed) or not stops


def test_a_single_batch_continues_despite_a_failure() -> None:
    assert RolloutPolicy().stop_reason(0, ["b"], FOUR, is_rolling=False) == ""


def test_batch_sizes_are_parsed() -> None:
    assert parse_sizes("1,25%") == (1, "25%")
    assert parse_sizes("100%") == ("100%",)
    assert parse_sizes("") == ()


@pytest.mark.parametrize("text", ["0", "many", "-1", "%", "0%", "101%", "-5%", "1.5", "²", "1,", "9" * 5000])
def test_an_invalid_batch_size_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="--serial: .*batch size"):
        parse_sizes(text)
