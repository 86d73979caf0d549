"""A cell of the lab, compared with the record of the server."""

from dataclasses import replace
from typing import Any

import pytest

from sparkwright.engines import http as engine_http
from sparkwright.engines.vllm.http import HTTP
from sparkwright.errors import Failed, Inconclusive
from sparkwright.measure import lab
from sparkwright.measure.http_probe import Target
from sparkwright.measure.workload import Load
from tests.measure.exact_server import ExactServer, Schedule, serving

FAST = Schedule(first_s=0.02, gap_s=0.004, chunks=60)


def make_target(server: ExactServer) -> Target:
    return Target(HTTP, server.url, "m")


def measure_cell(load: Load, schedule: Schedule = FAST) -> tuple[dict[str, Any], ExactServer]:
    with serving(schedule) as server:
        return lab.measure_load(make_target(server), load, idle_s=0), server


def test_all_tokens_are_counted_except_the_warm_up() -> None:
    cell, server = measure_cell(Load("serve", concurrency=3, requests=6, prompt_tokens=200, output_tokens=20))
    assert cell["verdict"] == "measured", cell["doubts"]
    assert (cell["figures"]["streams"], cell["figures"]["output_tokens"]) == (6, 120)
    assert len(server.record) == 6 + 3
    word_counts = [len(body["messages"][0]["content"].split()) for body in server.bodies[-6:]]
    assert all(150 < count < 230 for count in word_counts)


def test_times_agree_with_the_record_of_the_server() -> None:
    cell, server = measure_cell(Load("serve", concurrency=1, requests=3, prompt_tokens=50, output_tokens=30))
    ttfts_ms = sorted((sent[0][0] - received_s) * 1000 for received_s, sent in server.record[-3:])
    assert cell["figures"]["ttft_p50_ms"] == pytest.approx(ttfts_ms[1], abs=5)
    rate = sorted(29 / (sent[-1][0] - sent[0][0]) for _, sent in server.record[-3:])[1]
    assert cell["figures"]["stream_tok_per_s"] == pytest.approx(rate, rel=0.05)


def test_stall_of_every_stream_is_found() -> None:
    load = Load("hol1", streams=3, output_tokens=40, long_tokens=300, after_s=0.02)
    cell, _ = measure_cell(load, Schedule(first_s=0.01, gap_s=0.003, chunks=40, stall_at=20, stall_s=0.25))
    decoding = cell["groups"]["decoding"]
    assert decoding["stalls"] >= 3
    assert decoding["largest_gap_ms"] == pytest.approx(253, abs=25)
    assert len(cell["series"]) == 3
    assert max(cell["series"][0]["gap_ms"]) == pytest.approx(253, abs=25)
    assert 0 < cell["derived"]["chunks_meanwhile"] < 40, "3 on an idle machine: one each 3 ms in a prefill of 10 ms"
    assert cell["series"][0]["long_at_s"][0] == pytest.approx(0.02, abs=0.02)


def test_short_requests_behind_a_long_prompt_are_compared_with_short_requests_alone() -> None:
    load = Load("hol2", shorts=3, prompt_tokens=64, output_tokens=4, long_tokens=2000, after_s=0.03)
    cell, _ = measure_cell(load, Schedule(first_s=0.1, gap_s=0.002, prefill_s=0.05))
    derived = cell["derived"]
    assert derived["long_prompt_tokens"] == pytest.approx(2000, rel=0.05)
    assert derived["long_ttft_ms"] == pytest.approx(200, abs=50)
    assert derived["short_ttft_ratio"] == pytest.approx(1, abs=0.5)
    assert set(cell["groups"]) == {"long", "short", "short alone"}


def test_single_stream_gives_the_two_rates_of_llama_benchy() -> None:
    load = Load("smoke", requests=2, prompt_tokens=500, output_tokens=20)
    derived = measure_cell(load, Schedule(first_s=0.05, gap_s=0.005))[0]["derived"]
    assert derived["prefill_tok_per_s"] == pytest.approx(500 / 0.05, rel=0.15)
    assert derived["decode_tok_per_s"] == pytest.approx(200, rel=0.1)


def test_load_uses_its_temperature_and_reports_draft_acceptance() -> None:
    load = Load("serve", concurrency=2, requests=4, prompt_tokens=50, output_tokens=20, temperature=0.7)
    cell, server = measure_cell(load, Schedule(first_s=0.02, gap_s=0.004, chunks=60, accepts=[0.8, 0.5]))
    assert cell["derived"] == {"accepted_per_draft": 1.3, "accepted_first": 0.8}
    assert {body["temperature"] for body in server.bodies} == {0.7}


def test_other_traffic_is_inconclusive() -> None:
    with serving(Schedule(running=2)) as server, pytest.raises(Inconclusive, match="2 requests running"):
        lab.measure_load(make_target(server), Load("serve", concurrency=1, requests=1, output_tokens=4), idle_s=0)


def test_unmatched_token_counts_are_inconclusive() -> None:
    cell, _ = measure_cell(
        Load("serve", concurrency=1, requests=2, output_tokens=20), Schedule(first_s=0.01, ghost=5, chunks=20)
    )
    assert cell["verdict"] == "inconclusive"
    assert "the server counted 50 tokens, the client 40" in cell["doubts"]


def test_prefix_cache_hits_are_inconclusive() -> None:
    before = {engine_http.PREFIX_HITS: 0.0, engine_http.PREFIX_QUERIES: 0.0}
    after = {engine_http.PREFIX_HITS: 800.0, engine_http.PREFIX_QUERIES: 1000.0}
    counters = iter([before, before, after])
    with serving(FAST) as server:
        load = Load("serve", concurrency=1, requests=1, output_tokens=4)
        cell = lab.measure_load(make_target(server), load, idle_s=0, read_counters=lambda: next(counters, after))
    assert (cell["verdict"], cell["prefix_hit_share"]) == ("inconclusive", 0.8)


def test_server_that_accepts_only_common_keys_is_measured() -> None:
    schedule = Schedule(first_s=0.01, gap_s=0.002, refuses=["chat_template_kwargs", "ignore_eos"], usage="final")
    cell, server = measure_cell(Load("serve", concurrency=2, requests=2, output_tokens=10), schedule)
    assert (cell["verdict"], cell["failed_requests"]) == ("measured", 0)
    assert "ignore_eos" not in server.bodies[-1]


def test_stream_that_takes_longer_than_the_time_limit_for_a_token_is_measured_to_its_end() -> None:
    with serving(Schedule(first_s=0.01, gap_s=0.02, chunks=150)) as server:
        load = Load("serve", concurrency=1, requests=1, prompt_tokens=50, output_tokens=150)
        cell = lab.measure_load(replace(make_target(server), timeout_s=1), load, idle_s=0)
    assert (cell["figures"]["output_tokens"], cell["failed_requests"]) == (150, 0)


def test_server_without_a_token_fails_with_its_message() -> None:
    with serving(Schedule(status=503)) as server, pytest.raises(Failed, match="no token from .*: no"):
        lab.measure_load(make_target(server), Load("serve", concurrency=1, requests=1), idle_s=0)


def test_silent_server_is_reported_and_fails_after_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "MIN_SILENCE_S", 0.0)
    reports: list[tuple[int, int, str]] = []
    with serving(Schedule(silent=True)) as server:
        load = Load("serve", concurrency=1, requests=1)
        with pytest.raises(Failed, match="no token from .*: no data for 1 s"):
            lab.measure_load(
                replace(make_target(server), timeout_s=1),
                load,
                idle_s=0,
                report_progress=lambda *report: reports.append(report),
            )
        assert len(server.bodies) == 1
    assert reports[0] == (0, 0, "warming up, no data from the server for 0 s (limit: 1 s)")


def test_later_requests_connect_later() -> None:
    cell, server = measure_cell(Load("serve", rate=4, requests=4, output_tokens=4, prompt_tokens=20, seed=3))
    arrivals_s = [received_s for received_s, _ in server.record[-4:]]
    assert cell["figures"]["streams"] == 4
    assert max(arrivals_s) - min(arrivals_s) > 0.3
