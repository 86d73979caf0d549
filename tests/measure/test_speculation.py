"""Acceptance of draft tokens from an engine's counters, and the verdict on answers with many streams and a temperature."""

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import speculation
from sparkwright.measure.speculation import Acceptance, Cell

METRICS = """
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} {drafts}
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} {tokens}
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} {second}
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="999"} 7.0
"""


def read_metrics(**values: float) -> dict[str, float]:
    text = METRICS
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(float(value)))
    return HTTP.counters(text)


def test_acceptance_is_read_by_position_over_all_engines() -> None:
    before = read_metrics(drafts=100, tokens=200, accepted=150, first=45, second=30)
    after = read_metrics(drafts=300, tokens=600, accepted=450, first=135, second=90)
    accepted = speculation.compute_acceptance(before, after)
    assert accepted == Acceptance(200, 1.5, (0.9, 0.3))
    assert speculation.compute_acceptance(after, after) is None and speculation.compute_acceptance({}, {}) is None


@pytest.mark.parametrize(
    ("drafts", "now", "before", "dropped"),
    [
        (500, (0.61, 0.3), (0.8, 0.5), False),
        (500, (0.59, 0.3), (0.8, 0.5), True),
        (500, (0.15,), (0.5,), True),
        (40, (0.1,), (0.8,), False),
        (500, (), (0.8,), False),
        (500, (0.1,), (), False),
    ],
)
def test_acceptance_of_the_first_position_is_compared_with_the_baseline(
    drafts: float, now: tuple[float, ...], before: tuple[float, ...], dropped: bool
) -> None:
    assert bool(speculation.describe_acceptance_drop(Acceptance(drafts, None, now), before)) is dropped


def make_cells(*outcomes: tuple[int, int, str]) -> list[Cell]:
    rows = zip(speculation.TESTED_COMBINATIONS, outcomes, strict=False)
    return [Cell(*cell, right, nonsense, error) for cell, (right, nonsense, error) in rows]


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (((8, 0, ""), (7, 0, ""), (8, 0, ""), (6, 0, "")), ""),
        (((8, 0, ""), (7, 0, ""), (8, 0, ""), (1, 6, "")), "with 8 streams at temperature 0.7 it gets 1 of 8"),
        (((8, 0, ""), (2, 0, ""), (8, 0, ""), (8, 0, "")), "with 1 stream at temperature 0.7 it gets 2 of 8"),
        (((8, 0, ""), (7, 0, ""), (0, 0, "EngineDeadError")), "with 8 streams at temperature 0 the server did not answer: EngineDead"),
        (((1, 0, ""), (0, 0, ""), (0, 0, ""), (0, 0, "")), ""),  # no right answers without speculation either
        (((1, 0, ""), (0, 7, ""), (0, 0, ""), (0, 0, "")), "temperature 0.7"),
    ],
)  # fmt: skip
def test_speculation_is_compared_with_one_greedy_stream(outcomes: tuple[tuple[int, int, str], ...], text: str) -> None:
    failure = speculation.describe_failure(make_cells(*outcomes))
    assert text in failure and bool(failure) == bool(text)
