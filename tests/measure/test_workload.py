"""The requests of a load: lengths, arrivals, and new prompts."""

import itertools
import statistics

import pytest

from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import workload
from sparkwright.measure.http_probe import Target
from sparkwright.measure.server_client import ServerClient, TokenEstimator
from sparkwright.measure.workload import Load


def test_default_lengths_are_those_of_sharegpt() -> None:
    lengths = list(itertools.islice(workload._draw_prompts(Load("serve")), 20_000))
    prompts, answers = [row[1] for row in lengths], [row[2] for row in lengths]
    assert statistics.fmean(prompts) == pytest.approx(230, rel=0.05)
    assert statistics.fmean(answers) == pytest.approx(203, rel=0.05)
    assert min(prompts + answers) >= 4
    assert max(prompts + answers) <= 1024


def test_arrivals_are_a_seeded_poisson_process() -> None:
    load = Load("serve", rate=4.0, seed=7)
    times = list(itertools.islice(workload.arrival_times(load), 4001))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.07)
    assert times == list(itertools.islice(workload.arrival_times(load), 4001))


def test_token_estimator_learns_from_two_counted_prompts() -> None:
    estimator = TokenEstimator.from_prompts((32, 90), (256, 426))
    assert (estimator.tokens_per_word, estimator.fixed_tokens) == (1.5, 42)
    assert len(estimator.build_text(1542).split()) == 1 + 1000
    assert TokenEstimator.from_prompts((32, 0), (256, 0)) == TokenEstimator()


def test_every_prompt_begins_with_new_random_text() -> None:
    load = Load("serve", requests=40, concurrency=4, prompts=(("same words", 8),))
    (phase,) = workload.build_phases(load, ServerClient(Target(HTTP, "", "m")))
    texts = [request.body["messages"][0]["content"] for request in phase.requests]
    assert len({text[:16] for text in texts}) == 40
    assert all(text.endswith("same words") for text in texts)
    assert {request.body["max_tokens"] for request in phase.requests} == {8}


def test_short_requests_start_30_ms_after_the_long_one() -> None:
    load = Load("hol2", shorts=3, prompt_tokens=256, output_tokens=32, long_tokens=8192, after_s=0.03)
    alone, together = workload.build_phases(load, ServerClient(Target(HTTP, "", "m")))
    assert [request.group for request in alone.requests] == ["short alone"] * 3
    assert [(request.group, request.at_s) for request in together.requests] == [("long", 0.0)] + [("short", 0.03)] * 3
    words = [len(request.body["messages"][0]["content"].split()) for request in together.requests]
    assert words[0] > 8000 > 300 > words[1]


def test_mixed_load_has_a_fixed_random_order() -> None:
    load = Load("mixed", longs=20, shorts=80, prompt_tokens=64, output_tokens=8, long_tokens=512, concurrency=8)
    (phase,) = workload.build_phases(load, ServerClient(Target(HTTP, "", "m")))
    groups = [request.group for request in phase.requests]
    assert (groups.count("long"), groups.count("short"), phase.concurrency) == (20, 80, 8)
    assert groups != sorted(groups)
    assert groups == [
        request.group for request in workload.build_phases(load, ServerClient(Target(HTTP, "", "m")))[0].requests
    ]


def test_load_survives_json_and_an_unknown_kind_is_refused() -> None:
    load = Load("serve", concurrency=2, requests=3, prompts=(("a", 1),))
    assert Load.from_json(load.to_json()) == load
    with pytest.raises(ValueError, match="unknown load 'serv'"):
        Load.from_json({"kind": "serv"})
