"""The streaming client against a server whose schedule is known, and against real streams of vLLM 0.32.0."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from sparkwright.measure import smoke, stream
from tests.measure.exact_server import Schedule, serve

DATA = Path(__file__).parent.parent / "data" / "vllm-0.32.0"


def measured(**plan: Any) -> stream.Stream:
    server = serve(Schedule(**plan))
    try:
        return stream.run(f"http://127.0.0.1:{server.port}", {"stream": True}, timeout_s=5)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("per_chunk", [1, 3, 8])
def test_the_rate_is_of_tokens_not_of_chunks(per_chunk: int) -> None:
    found = measured(per_chunk=per_chunk)
    assert found.tokens == 30 * per_chunk
    assert found.tok_per_s == pytest.approx(100 * per_chunk, rel=0.25)
    assert not found.approximate


def test_the_role_chunk_is_no_token() -> None:
    found = measured(first_s=0.2)
    assert found.ttft_s is not None
    assert found.ttft_s > 0.19


@pytest.mark.parametrize("kind", ["content", "reasoning", "reasoning_content"])
def test_thinking_counts_as_tokens(kind: str) -> None:
    assert measured(kind=kind).tokens == 30


def test_a_final_count_is_shared_among_the_chunks() -> None:
    found = measured(usage="final", per_chunk=4)
    assert (found.tokens, found.approximate) == (120, False)


def test_without_any_count_the_result_says_it_is_approximate() -> None:
    found = measured(usage="none", per_chunk=4)
    assert (found.tokens, found.approximate) == (30, True)


def test_a_stall_is_seen_as_long_as_it_was() -> None:
    assert max(measured(stall_at=10, stall_s=0.5).gaps_s) == pytest.approx(0.51, abs=0.1)


def test_a_stream_that_is_cut_is_an_error_not_a_short_answer() -> None:
    with pytest.raises(stream.StreamError):
        measured(cut_at=10)


def test_a_refusal_carries_its_status() -> None:
    with pytest.raises(stream.StreamError, match="no") as caught:
        measured(status=500)
    assert caught.value.status == 500


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(stream.StreamError, match="broke off"):
        stream.run("http://127.0.0.1:1", {})


@pytest.mark.parametrize("case", ["hybrid-chunked-on", "llama-eager", "qwen3next-eager", "llama-chunked-off"])
def test_a_real_stream_is_read_whole(case: str) -> None:
    """Without continuous usage the chunks of a real answer are its tokens, less those that decode to nothing yet."""
    raw = (DATA / case / "chat-stream.sse.txt").read_bytes().partition(b"\r\n\r\n")[2] or (
        DATA / case / "chat-stream.sse.txt"
    ).read_bytes().partition(b"\n\n")[2]
    found = stream._read(io.BytesIO(raw), 0.0, 1e12, lambda tokens: None)  # type: ignore[arg-type]
    assert found.tokens > 0
    assert found.prompt_tokens > 0


@pytest.mark.parametrize(
    ("rates", "expected", "baseline", "verdict"),
    [
        ([47, 47, 46], 47, None, "new baseline"),
        ([5.7, 5.7, 5.6], 47, None, "misconfigured"),
        ([5.7, 5.7, 5.6], None, None, "new baseline"),
        ([47, 46, 47], 47, (47, 0.2), "proved"),
        ([44, 43.9, 44.1], 47, (47, 0.2), "unclear"),
        ([30, 30, 31], 47, (47, 0.2), "regression"),
        ([44, 43.9, 44.1, 46, 46, 46, 46], 47, (47, 0.2), "proved"),
        ([41, 41, 41, 41, 41, 46, 46], 47, (47, 0.2), "regression"),
        ([44, 43, 44], 47, (47, 3), "proved"),
        ([], 47, None, "misconfigured"),
    ],
)
def test_the_verdict_on_some_runs(
    rates: list[float], expected: float | None, baseline: tuple[float, float] | None, verdict: str
) -> None:
    known = smoke.Baseline(*baseline) if baseline else None
    assert smoke.judge(rates, expected, known)[0] == verdict


def test_prompts_never_begin_alike() -> None:
    assert len({smoke.prompt()[:8] for _ in range(50)}) == 50
