"""The page of an experiment in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest

from sparkwright.bench.results_file import Results
from sparkwright.html import experiment_page, plot
from tests.bench import made
from tests.html import browser

PROBE = """{
  pictures: [...document.querySelectorAll('figure > svg')].map(svg => ({
    name: document.getElementById(svg.getAttribute('aria-labelledby'))?.textContent,
    table: svg.closest('section').querySelectorAll('table tbody tr').length, ...plot(svg, 'path, rect, polyline'),
  })),
  ids: [...document.querySelectorAll('[id]')].map(item => item.id),
  bold: document.querySelectorAll('td b').length,
}"""


def probe_page(results: Results, folder: Path, width: int = 1200) -> dict[str, Any]:
    return browser.probe_page(experiment_page.render_page(results), PROBE, folder, width)


def charts_by_key(results: Results) -> dict[str, plot.Chart]:
    return {chart.key: chart for chart in experiment_page.build_charts(results)}


def test_a_browser_shows_every_plot_with_its_table(tmp_path: Path) -> None:
    results = made.make_ab_results()
    probe = probe_page(results, tmp_path)
    names = [picture["name"] for picture in probe["pictures"]]
    assert names == [chart.title for chart in experiment_page.build_charts(results)]
    assert {picture["role"] for picture in probe["pictures"]} == {"img"}
    for picture in probe["pictures"]:
        assert picture["box"]["w"] > 400 and picture["box"]["h"] > 200, picture
        assert picture["shapes"] and len(picture["texts"]) > 5, picture
        assert all(shape["w"] > 1 for shape in picture["shapes"]), picture
        assert picture["table"] >= 2, picture
        browser.check_layout(picture)
    assert any(name.startswith("Gaps over time") for name in probe["headings"])
    assert any(name.startswith("H2:") for name in probe["headings"])
    assert len(set(probe["ids"])) == len(probe["ids"])
    assert (probe["fetched"], probe["scopes"], probe["bold"]) == ([], True, 0)


def test_the_page_fits_a_narrow_window(tmp_path: Path) -> None:
    assert probe_page(made.make_ab_results(), tmp_path, width=500)["fits"]


def test_a_sweep_has_charts_of_latency_by_chunk_size() -> None:
    charts = charts_by_key(made.make_sweep_results())
    assert charts["sweep-ttft_p50_ms"].lines[0].points == ((1024, 390.625), (4096, 97.65625))
    header = ("max_num_batched_tokens", "serve c=8, ms")
    assert charts["sweep-itl_p99_ms"].table == (header, ("1024", "256.0"), ("4096", "1,024.0"))
    assert "not started: a block of 2096 tokens" in experiment_page.render_page(made.make_sweep_results())


def test_two_swept_flags_are_shown_as_a_heat_map(tmp_path: Path) -> None:
    results = made.make_swept_results((1, 4), (1, 8), (3, 4), (3, 8))
    throughput = charts_by_key(results)["grid-0-output_tok_per_s"]
    assert (throughput.kind, throughput.categories) == ("heat", ("4", "8"))
    assert [line.name for line in throughput.lines] == ["1", "3"]
    assert throughput.table[1:] == (("1", "100.0", "110.0"), ("3", "120.0", "-"))
    picture = plot.render_chart(throughput)
    assert all(f">{figure}<" in picture for figure in ("100.0", "110.0", "120.0"))
    assert "data:image" not in picture
    probe = probe_page(results, tmp_path)
    cells = [shape for shape in probe["pictures"][0]["shapes"] if shape["kind"] == "cell"]
    first, second, third = (round(cell["x"]) for cell in cells)
    assert first == third < second
    browser.check_layout(probe["pictures"][0])
    assert throughput.title in [picture["name"] for picture in probe["pictures"]]


def test_a_swept_flag_is_a_line_for_numbers_and_bars_for_other_values() -> None:
    depth = charts_by_key(made.make_swept_results(1, 2, 4, 8))["sweep-output_tok_per_s"]
    assert (depth.kind, depth.x_title) == ("lines", "speculative-config.num_speculative_tokens")
    assert depth.lines[0].points == ((1, 100.0), (2, 110.0), (4, 120.0))
    words = charts_by_key(made.make_swept_results("unset", 2, 3))["sweep-output_tok_per_s"]
    assert (words.kind, words.categories) == ("bars", ("unset", "2", "3"))
    assert words.table[1:] == (("unset", "100.0"), ("2", "110.0"), ("3", "-"))
    assert "highest throughput with arm 2, 120.0 tok/s" in experiment_page.render_page(
        made.make_swept_results(1, 2, 4, 8)
    )


def test_texts_of_a_recipe_are_escaped() -> None:
    text = experiment_page.render_page(made.make_ab_results())
    assert "<b>chunked prefill</b>" not in text
    assert "&lt;b&gt;chunked prefill&lt;/b&gt; off" in text


def test_the_page_has_no_external_references() -> None:
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", experiment_page.render_page(made.make_ab_results()))
    assert not re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?(?:https?:)?//', text)


@pytest.mark.parametrize("lines", [1, 7, 12])
def test_each_line_of_a_chart_is_named_and_looks_different(lines: int) -> None:
    arms = [f"{n}: {'an arm with a long name ' * (n % 3)}" for n in range(lines)]
    drawn_lines = tuple(plot.Line(arm, ((1, 1), (1000, 10 + n))) for n, arm in enumerate(arms))
    picture = plot.render_chart(plot.Chart("many", "Many", "", "x", "y, ms", drawn_lines))
    assert picture.count("<polyline") == lines
    looks = re.findall(r'<polyline class="series (series\d)" points="[^"]*"( stroke-dasharray="[^"]*")?/>', picture)
    assert len(set(looks)) == lines
    if lines > 1:
        assert all(f">{arm.strip()[:60]}" in picture for arm in arms)
