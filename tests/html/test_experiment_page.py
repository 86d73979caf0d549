"""The page of an experiment in a real browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkwright.bench.results_file import Results
from sparkwright.html import experiment_page, plot
from tests.bench import made
from tests.html.test_hosts_page import refuse_disorder

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

#: asked of the page when it is laid out; the answer stands in the document's title
PROBE = """<script>
const box = one => { const b = one.getBoundingClientRect(); return {x: b.x, y: b.y, w: b.width, h: b.height}; };
const pictures = [...document.querySelectorAll('figure > svg')];
const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
document.title = JSON.stringify({
  pictures: pictures.map(one => ({
    name: document.getElementById(one.getAttribute('aria-labelledby'))?.textContent, role: one.getAttribute('role'),
    box: box(one), texts: [...one.querySelectorAll('text')].map(t => ({words: t.textContent, ...box(t)})),
    shapes: [...one.querySelectorAll('path, rect, polyline')].map(s => ({kind: s.getAttribute('class'), fill: getComputedStyle(s).fill, ...box(s)})),
    table: one.closest('section').querySelectorAll('table tbody tr').length,
  })),
  headings: [...document.querySelectorAll('h1, h2')].map(one => one.textContent),
  twice: ids.filter((one, n) => ids.indexOf(one) !== n),
  loaded: performance.getEntriesByType('resource').length,
  spills: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  heads: [...document.querySelectorAll('th')].every(one => one.hasAttribute('scope')),
  bold: document.querySelectorAll('td b').length,
});
</script></body>"""


def find_browser() -> str:
    path_found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if path_found is None:
        pytest.skip("no chromium here: apt install chromium")
    return path_found


def probe_page(results: Results, folder: Path, width: int = 1200) -> dict[str, Any]:
    """Return the probe's view of the page in a browser. A copy of the page allows the probe's script."""
    program = find_browser()
    path = folder / "report.html"
    allowed = experiment_page.render_page(results).replace(
        "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
    )
    path.write_text(allowed.replace("</body>", PROBE))
    words = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder}/profile",
    ]
    words += [f"--window-size={width},1400", "--dump-dom", path.as_uri()]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    title = re.search(r"<title>(.*?)</title>", result.stdout, re.S)
    assert title, result.stderr[-2000:]
    probe: dict[str, Any] = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return probe


def test_a_browser_shows_every_plot_with_its_table(tmp_path: Path) -> None:
    results = made.make_ab_results()
    probe = probe_page(results, tmp_path)
    assert [picture["name"] for picture in probe["pictures"]] == [
        chart.title for chart in experiment_page.build_charts(results)
    ]
    assert {picture["role"] for picture in probe["pictures"]} == {"img"}
    for picture in probe["pictures"]:
        assert picture["box"]["w"] > 400 and picture["box"]["h"] > 200, picture
        assert picture["shapes"] and len(picture["texts"]) > 5, picture
        assert all(shape["w"] > 1 for shape in picture["shapes"]), picture
        assert picture["table"] >= 2, picture
        refuse_disorder(picture)
    assert any(name.startswith("Gaps over time") for name in probe["headings"])
    assert any(name.startswith("H2:") for name in probe["headings"])
    assert (probe["twice"], probe["loaded"], probe["heads"], probe["bold"]) == ([], 0, True, 0)


def test_a_narrow_window_does_not_spill(tmp_path: Path) -> None:
    assert probe_page(made.make_ab_results(), tmp_path, width=500)["spills"] is False


def test_a_sweep_shows_latencies_against_chunk_size() -> None:
    charts = {chart.key: chart for chart in experiment_page.build_charts(made.make_sweep_results())}
    assert charts["sweep-ttft_p50_ms"].lines[0].points == ((1024, 390.625), (4096, 97.65625))
    assert charts["sweep-itl_p99_ms"].table == (
        ("max_num_batched_tokens", "serve c=8, ms"),
        ("1024", "256.0"),
        ("4096", "1,024.0"),
    )
    assert "not started: a block of 2096 tokens" in experiment_page.render_page(made.make_sweep_results())


def test_two_swept_flags_are_a_heat_map_with_its_table(tmp_path: Path) -> None:
    results = made.make_swept_results((1, 4), (1, 8), (3, 4), (3, 8))
    throughput = next(
        chart for chart in experiment_page.build_charts(results) if chart.key == "grid-0-output_tok_per_s"
    )
    assert (throughput.kind, throughput.bars, [line.name for line in throughput.lines]) == (
        "heat",
        ("4", "8"),
        ["1", "3"],
    )
    assert throughput.table[1:] == (("1", "100.0", "110.0"), ("3", "120.0", "-"))
    picture = plot.render_chart(throughput)
    assert all(f">{figure}<" in picture for figure in ("100.0", "110.0", "120.0"))
    assert "data:image" not in picture
    probe = probe_page(results, tmp_path)
    cells = [shape for shape in probe["pictures"][0]["shapes"] if shape["kind"] == "cell"]
    first, second, third = (round(cell["x"]) for cell in cells)
    assert first == third < second
    refuse_disorder(probe["pictures"][0])
    assert throughput.title in [picture["name"] for picture in probe["pictures"]]


def test_a_swept_flag_is_a_line_over_numbers_and_bars_over_words() -> None:
    depth = {chart.key: chart for chart in experiment_page.build_charts(made.make_swept_results(1, 2, 4, 8))}[
        "sweep-output_tok_per_s"
    ]
    assert (depth.kind, depth.x) == ("lines", "speculative-config.num_speculative_tokens")
    assert depth.lines[0].points == ((1, 100.0), (2, 110.0), (4, 120.0))
    words = {chart.key: chart for chart in experiment_page.build_charts(made.make_swept_results("unset", 2, 3))}[
        "sweep-output_tok_per_s"
    ]
    assert (words.kind, words.bars) == ("bars", ("unset", "2", "3"))
    assert words.table[1:] == (("unset", "100.0"), ("2", "110.0"), ("3", "-"))
    assert "most output with arm 2, 120.0 tok/s" in experiment_page.render_page(made.make_swept_results(1, 2, 4, 8))


def test_what_a_recipe_says_is_text_in_the_page_not_markup() -> None:
    text = experiment_page.render_page(made.make_ab_results())
    assert "<b>chunked prefill</b>" not in text
    assert "&lt;b&gt;chunked prefill&lt;/b&gt; off" in text


def test_a_page_asks_nothing_of_the_network() -> None:
    text = re.sub(r'xmlns(:\w+)?="[^"]*"', "", experiment_page.render_page(made.make_ab_results()))
    assert not re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?(?:https?:)?//', text)


@pytest.mark.parametrize("lines", [1, 7, 12])
def test_each_line_of_a_chart_is_named_and_drawn_apart_from_the_others(tmp_path: Path, lines: int) -> None:
    arms = [f"{n}: {'an arm with a long name ' * (n % 3)}" for n in range(lines)]
    chart = plot.Chart(
        "many", "Many", "", "x", "y, ms", tuple(plot.Line(arm, ((1, 1), (1000, 10 + n))) for n, arm in enumerate(arms))
    )
    picture = plot.render_chart(chart)
    assert picture.count("<polyline") == lines
    looks = re.findall(r'<polyline class="series (series\d)" points="[^"]*"( stroke-dasharray="[^"]*")?/>', picture)
    assert len(set(looks)) == lines
    if lines > 1:
        assert all(f">{arm.strip()[:60]}" in picture for arm in arms)
