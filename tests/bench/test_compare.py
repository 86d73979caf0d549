"""Comparisons of two results: real differences and noise."""

import io
from pathlib import Path
from typing import Any

import pytest

from sparkwright.bench import compare, summary, vllm_results
from sparkwright.bench.results_file import Results
from sparkwright.errors import Refused
from tests.bench import made

SERVE = {"kind": "serve", "concurrency": 8, "requests": 16}


def make_rates(*rates: float) -> Results:
    cells = [made.make_cell("server", SERVE, n + 1, output_tok_per_s=rate) for n, rate in enumerate(rates)]
    return made.make_results("serve", [], cells)


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((100, 102), (120, 121), "better"),
        ((100, 102), (80, 81), "worse"),
        ((100, 110), (105, 120), "within noise"),
        ((100, 101), (101.5, 102), "within noise"),
        ((100,), (120,), "better?"),
        ((100,), (100,), "equal"),
    ],
)
def test_overlapping_repetitions_are_noise(first: tuple[float, ...], second: tuple[float, ...], verdict: str) -> None:
    comparisons = compare.compare_results(make_rates(*first), make_rates(*second))
    assert {item.figure: item.verdict for item in comparisons}["output tok/s"] == verdict


@pytest.mark.parametrize(
    ("first", "second", "are_compared"),
    [
        ({"concurrency": 8, "requests": 16}, {"concurrency": 8, "requests": 32}, True),
        ({"concurrency": 8, "prompt_tokens": 512}, {"concurrency": 8}, True),
        ({"concurrency": 8, "prompt_tokens": 512}, {"concurrency": 8, "prompt_tokens": 8192}, False),
        ({"concurrency": 4}, {"concurrency": 8}, False),
    ],
)
def test_only_similar_loads_are_compared(first: dict[str, Any], second: dict[str, Any], are_compared: bool) -> None:
    sides = [
        made.make_results("serve", [], [made.make_cell("", {"kind": "serve", **load}, ttft_p50_ms=100)])
        for load in (first, second)
    ]
    assert bool(compare.compare_results(*sides)) is are_compared


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        (("4096", "8192"), ("8192", "16384"), {("8192", 200, 1)}),
        (("4096", "8192"), ("512",), {("4096 and 512", 100, 1)}),
        (("4096",), ("512",), {("", 100, 1)}),
    ],
)
def test_a_comparison_names_the_arms_of_several(
    first: tuple[str, ...], second: tuple[str, ...], pairs: set[tuple[str, float, float]]
) -> None:
    sides = [
        made.make_results("sweep", [], [made.make_cell(arm, SERVE, output_tok_per_s=n * rate) for n, arm in arms])
        for rate, arms in ((100, enumerate(first, 1)), (1, enumerate(second, 1)))
    ]
    differences = compare.compare_results(*sides)
    rates = [item for item in differences if item.figure == "output tok/s"]
    assert {(item.load.rpartition(": ")[0], item.first, item.second) for item in rates} == pairs


def test_arms_are_compared_by_the_figures_of_each_load() -> None:
    comparisons = compare.compare_arms(made.make_ab_results())
    rows = {(item.load.split(":")[0], item.figure): item for item in comparisons}
    gap = rows["H1", "largest gap ms"]
    assert (gap.first, gap.second, gap.verdict) == (502, 3002, "worse")
    shorts = rows["H2", "short prompts behind the long one, mean TTFT ms"]
    assert shorts.ratio == pytest.approx(1 / 6, rel=0.01)
    assert shorts.verdict == "better"
    assert compare.compare_arms(made.make_sweep_results()) != []
    assert compare.compare_arms(make_rates(1, 2)) == []


def test_percentile_that_misses_stalls_gives_no_verdict() -> None:
    load = {"kind": "hol1", "streams": 3, "long_tokens": 16384}
    found: dict[str, Any] = {"itl_count": 765, "stalls": 14, "itl_p99_ms": 1023.8, "largest_gap_ms": 1048.0}
    missed: dict[str, Any] = {"itl_count": 765, "stalls": 3, "itl_p99_ms": 65.5, "largest_gap_ms": 4246.0}
    arms = [("a", found), ("b", missed)]
    cells = [made.make_cell(arm, load, n, group="decoding", **figures) for n in (1, 2) for arm, figures in arms]
    comparisons = {item.figure: item.verdict for item in compare.compare_arms(made.make_results("ab", [], cells))}
    assert (comparisons["ITL p99 ms"], comparisons["largest gap ms"]) == ("misses stalls", "worse")


def test_summary_shows_figures_and_refused_arms() -> None:
    out = io.StringIO()
    summary.print_results(made.make_sweep_results(), out, width=200)
    text = out.getvalue()
    assert "arm 512 (max-num-batched-tokens 512): not started: a block of 2096 tokens" in text
    assert "serve c=8" in text
    assert "1,024.0" in text


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_titles_of_a_narrow_table_are_wrapped_at_words(width: int) -> None:
    out = io.StringIO()
    summary.print_results(made.make_sweep_results(), out, width=width)
    lines = out.getvalue().splitlines()
    first_row = next(n for n, line in enumerate(lines) if line.startswith("serve c=8"))
    all_titles = " ".join(("LOAD ARM", *(title for title, _, _ in summary.FIGURE_COLUMNS)))
    title_lines = [line for line in lines[first_row - 3 : first_row] if not line.startswith(("arm ", "of ", "than "))]
    assert set(" ".join(title_lines).split()) <= set(all_titles.split())
    assert all(len(line) <= width for line in lines[: first_row + 2])


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_compared_figures_fit_a_narrow_terminal_without_broken_words(width: int) -> None:
    figure, load = "short prompts behind the long one, mean TTFT ms", "a prompt of 16384 tokens while 3 streams decode"
    names = ("qwen3.5-35b-2026-11-30-serve", "qwen3.5-35b-2026-11-30-serve-2")
    difference = compare.Difference(load, figure, 4335.0, 14335.2, 1, more_is_better=False, is_significant=False)
    out = io.StringIO()
    summary.print_differences([difference], *names, out, width=width)
    lines = out.getvalue().splitlines()
    assert lines[:2] == [f"A: {names[0]}", f"B: {names[1]}"] and max(map(len, lines)) <= width
    assert "  4,335.0  14,335.2  3.307  within noise" in out.getvalue()
    assert set(f"{figure} {load}".split()) <= set(out.getvalue().split())


TEXT = """
INFO 11-21 some log line
============ Serving Benchmark Result ============
Successful requests:                     32
Failed requests:                         1
Maximum request concurrency:             8
Request rate configured (RPS):           inf
Benchmark duration (s):                  15.00
Total input tokens:                      6400
Total generated tokens:                  3000
Output token throughput (tok/s):         200.00
---------------Time to First Token----------------
Median TTFT (ms):                        200.50
-----Time per Output Token (excl. 1st token)------
Median TPOT (ms):                        25.00
P99 TPOT (ms):                           72.63
---------------Inter-token Latency----------------
Median ITL (ms):                         24.00
P99 ITL (ms):                            90.00
==================================================
itls=[[0.02, 0.021, 1.0, 0.02], [0.02, 0.02,]]
"""


def test_text_output_of_vllm_bench_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(TEXT)
    (cell,) = vllm_results.read_results(path).cells
    assert (cell.load["concurrency"], cell.load["rate"], cell.failed_requests) == (8, 0, 1)
    figures = cell.figures
    assert (figures.ttft_p50_ms, figures.tpot_p99_ms, figures.itl_p99_ms) == (200.5, 72.63, 90.0)
    assert (figures.output_tok_per_s, figures.stream_tok_per_s) == (200.0, 40.0)
    assert (figures.largest_gap_ms, figures.stalls, figures.stall_ms) == (1000.0, 1, 1000.0)


def test_json_of_vllm_bench_is_read_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(
        '{"date": "20261121", "model_id": "m", "num_prompts": 16, "request_rate": "inf", "max_concurrency": 8, "duration": 3.0,'
        ' "completed": 16, "total_input_tokens": 100, "total_output_tokens": 300, "output_throughput": 100.0,'
        ' "median_ttft_ms": 205.0, "p99_ttft_ms": 300.0, "median_itl_ms": 21.0, "ttfts": [0.2, 0.21], "itls": [[0.02, 0.03], []]}'
    )
    results = vllm_results.read_results(path)
    comparisons = {item.figure: item for item in compare.compare_results(results, make_rates(100))}
    assert comparisons["output tok/s"].verdict == "equal"
    assert comparisons["TTFT p50 ms"].ratio == pytest.approx(200 / 205)
    assert results.cells[0].figures.largest_gap_ms == 30.0


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("Median age: 31\n")
    with pytest.raises(Refused, match="neither the JSON nor the text"):
        vllm_results.read_results(tmp_path / "x.txt")
