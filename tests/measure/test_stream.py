"""The streaming client, compared with a server that records its times, and with real streams of vLLM 0.32.0."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import connection, figures, load, stream
from sparkwright.measure.background import LagSampler
from sparkwright.measure.http_probe import Target
from tests.measure.exact_server import ExactServer, Schedule, serving

DATA = Path(__file__).parent.parent / "data" / "vllm-0.32.0"
BODY = openai_api.build_stream_request(HTTP, "m", "hello", 1000)


def measure(*, cap_s: float = 60, timeout_s: float = 5, **plan: Any) -> stream.Stream:
    with serving(Schedule(**plan)) as server:
        return stream.measure_stream(server.url, BODY, timeout_s=timeout_s, cap_s=cap_s)


def server_span(server: ExactServer) -> tuple[int, float]:
    """Return the tokens of the first stream after its first chunk, and their seconds by the server's own clock."""
    (first_s, first), *_, (last_s, last) = server.record[0][1]
    return last - first, last_s - first_s


def tolerance_s(lag: LagSampler) -> float:
    """Return the largest difference between both clocks on this machine: either side may wake up late."""
    return 0.05 + 2 * lag.max_s


@pytest.mark.parametrize("per_chunk", [1, 3, 8])
@pytest.mark.parametrize("usage", ["continuous", "final", "inside"])
def test_rate_counts_tokens_instead_of_chunks(per_chunk: int, usage: str) -> None:
    with serving(Schedule(per_chunk=per_chunk, usage=usage)) as server, LagSampler() as lag:
        streamed = stream.measure_stream(server.url, BODY)
        tokens, decoding_s = server_span(server)
    assert streamed.tokens == 30 * per_chunk
    assert streamed.tok_per_s is not None
    assert tokens / streamed.tok_per_s == pytest.approx(decoding_s, abs=tolerance_s(lag))
    assert not streamed.approximate


def test_ttft_is_measured_to_the_first_token_instead_of_the_role() -> None:
    with serving(Schedule(first_s=0.2)) as server, LagSampler() as lag:
        streamed = stream.measure_stream(server.url, BODY)
        received_s, sent = server.record[0]
    assert streamed.ttft_s == pytest.approx(sent[0][0] - received_s, abs=tolerance_s(lag))
    assert streamed.points[0][1] == 1


@pytest.mark.parametrize(
    "schedule",
    [
        *({"kind": kind, "usage": "none"} for kind in ("content", "reasoning", "reasoning_content", "tool_calls")),
        {"empty_last": True},
    ],
    ids=str,
)
def test_all_generated_tokens_are_counted(schedule: dict[str, Any]) -> None:
    assert measure(**schedule).tokens == 30


def test_thinking_tokens_are_counted_separately() -> None:
    streamed = measure(reasoning=10)
    assert (streamed.tokens, streamed.thinking_tokens) == (30, 10)


def test_result_without_token_counts_is_approximate() -> None:
    streamed = measure(usage="none", per_chunk=4)
    assert (streamed.tokens, streamed.approximate) == (30, True)


def test_stall_is_reported_with_its_duration() -> None:
    with serving(Schedule(stall_at=10, stall_s=1.0)) as server, LagSampler() as lag:
        summary = figures.summarize([stream.measure_stream(server.url, BODY)])
        times_s = [at_s for at_s, _ in server.record[0][1]]
        stall_s = max(b - a for a, b in itertools.pairwise(times_s))
    assert stall_s > 1.0
    assert summary.largest_gap_s == pytest.approx(stall_s, abs=tolerance_s(lag))
    assert summary.stalls >= 1
    assert summary.stall_s >= summary.largest_gap_s


def test_largest_gap_finds_a_stall_that_p99_misses() -> None:
    points = [(n * 0.02 + (1.0 if n > 100 else 0.0), n + 1) for n in range(201)]
    summary = figures.summarize([stream.Stream(points=points)])
    assert summary.itl is not None and summary.itl.p99 == pytest.approx(0.02)
    assert (summary.stalls, round(summary.largest_gap_s, 6), round(summary.stall_s, 6)) == (1, 1.02, 1.02)


def test_cut_stream_is_an_error() -> None:
    with pytest.raises(stream.StreamError) as excinfo:
        measure(cut_at=10)
    assert excinfo.value.tokens == 9


@pytest.mark.parametrize(
    "error",
    [
        'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}',  # vLLM, SGLang
        'data: {"object": "error", "message": "EngineCore encountered an issue.", "code": 400}',  # vLLM before 0.11
        'data: {"error": "EngineCore encountered an issue."}',
        'data: {"error": {"code": 500, "message": "EngineCore encountered an issue.", "type": "server_error"}}',  # llama.cpp
        'error: {"code": 500, "message": "EngineCore encountered an issue.", "type": "server_error"}',  # llama.cpp of 2025
        "error: EngineCore encountered an issue.",
    ],
)
def test_errors_in_a_stream_with_status_200_are_failures(error: str) -> None:
    with pytest.raises(stream.StreamError, match=r"server error: EngineCore encountered an issue\.$") as excinfo:
        measure(error_at=3, error=error)
    assert excinfo.value.tokens == 2


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_aborted_request_is_a_failure(reason: str) -> None:
    chunk = f'data: {{"choices": [{{"index": 0, "delta": {{}}, "finish_reason": "{reason}"}}]}}'
    with pytest.raises(stream.StreamError, match=f"the server aborted the request: finish_reason {reason}"):
        measure(error_at=3, error=chunk)


def test_refusal_has_its_status() -> None:
    with pytest.raises(stream.StreamError, match="no") as excinfo:
        measure(status=500)
    assert excinfo.value.status == 500


def test_unreachable_server_is_an_error() -> None:
    with pytest.raises(stream.StreamError, match="no answer"):
        stream.measure_stream("http://127.0.0.1:1", {})


def test_slow_headers_end_at_the_deadline() -> None:
    with pytest.raises(stream.StreamError, match="no data"):
        measure(drip_s=0.2, timeout_s=0.5)


def test_cap_ends_a_slow_stream_with_its_tokens() -> None:
    streamed = measure(gap_s=0.05, chunks=1000, cap_s=0.6)
    assert streamed.capped
    assert 1 < streamed.tokens < 15


def test_early_wake_of_the_kernel_does_not_break_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    set_option = connection._Socket._set_timeout_option
    monkeypatch.setattr(
        connection._Socket, "_set_timeout_option", lambda self, name, seconds: set_option(self, name, seconds * 0.5)
    )
    assert measure(gap_s=0.2, chunks=1000, cap_s=0.6).capped


def test_cap_ends_a_silent_server() -> None:
    assert measure(silent=True, cap_s=0.3).tokens == 0


def test_streams_are_timed_from_their_own_requests() -> None:
    with serving(Schedule(first_s=0.1, chunks=10)) as server, LagSampler() as lag:
        requests = [load.Request(BODY, at_s=0.05 * n, group=str(n)) for n in range(8)]
        outcomes = load.send_all(Target(HTTP, server.url), requests)
        ttfts_s = sorted(sent[0][0] - received_s for received_s, sent in server.record)
    assert [outcome.request.group for outcome in outcomes] == [str(n) for n in range(8)]
    summary = figures.summarize([outcome.stream for outcome in outcomes if outcome.stream])
    assert summary.tokens == 80
    assert summary.ttft is not None
    assert summary.ttft.p50 == pytest.approx(figures.percentile(ttfts_s, 50), abs=tolerance_s(lag))


def test_workers_take_the_next_request_after_each_answer() -> None:
    with serving(Schedule(first_s=0.02, gap_s=0.001, chunks=5)) as server:
        outcomes = load.send_all(Target(HTTP, server.url), [load.Request(BODY)] * 10, concurrency=3)
        begins_s = [received_s for received_s, _ in server.record]
        ends_s = [sent[-1][0] for _, sent in server.record]
    assert len([outcome for outcome in outcomes if outcome.stream]) == 10
    for at_s in begins_s:
        assert sum(begin_s <= at_s for begin_s in begins_s) - sum(end_s < at_s for end_s in ends_s) <= 3


def test_failed_request_is_reported_with_its_key() -> None:
    with serving(Schedule(api_key="right")) as server:
        assert load.send_all(Target(HTTP, server.url, api_key="wrong"), [load.Request(BODY)])[0].error
        assert load.send_all(Target(HTTP, server.url, api_key="right"), [load.Request(BODY)])[0].stream


@pytest.mark.parametrize("case", ["hybrid-chunked-on", "llama-eager", "qwen3next-eager", "llama-chunked-off"])
def test_real_streams_are_read_completely(case: str) -> None:
    """Without continuous usage the final count is distributed over the chunks."""
    raw = (DATA / case / "chat-stream.sse.txt").read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    pieces = [(n / 100, raw[n : n + 97]) for n in range(0, len(raw), 97)]
    streamed = stream.parse_recording(stream.Recording(pieces))
    assert streamed.tokens > 0
    assert streamed.prompt_tokens > 0
    assert not streamed.approximate


def make_stream(*chunks: tuple[float, int]) -> stream.Stream:
    """Return a stream of chunks, each (seconds since the request, tokens in it)."""
    totals = itertools.accumulate(tokens for _, tokens in chunks)
    points = [(at_s, total) for (at_s, _), total in zip(chunks, totals, strict=True)]
    return stream.Stream(points=points, total=points[-1][1])


@pytest.mark.parametrize(
    "chunks",
    [
        [(1.83, 110), (1.833, 6), (1.836, 6), (1.839, 6)],  # a parser that buffers until the end of the thinking
        [(0.5 * n, 32) for n in range(1, 5)],
        [(0.1, 1), *((1.8, 1) for _ in range(100))],  # a proxy that buffers: one chunk per token, all in one read
        [(1.2, 128)],
    ],
)
def test_stream_in_bursts_has_no_rate(chunks: list[tuple[float, int]]) -> None:
    streamed = make_stream(*chunks)
    assert streamed.in_bursts
    assert (streamed.tok_per_s, streamed.ttft_s, streamed.tpot_s, streamed.gaps_s) == (None, None, None, [])
    assert streamed.request_tok_per_s == pytest.approx(streamed.tokens / chunks[-1][0])
    assert figures.summarize([streamed]).to_json()["streams_in_bursts"] == 1


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_speculation_is_not_a_burst(tokens: int) -> None:
    streamed = make_stream(*((0.1 + 0.05 * n, tokens) for n in range(20)))
    assert not streamed.in_bursts
    assert streamed.tok_per_s == pytest.approx(tokens / 0.05)
