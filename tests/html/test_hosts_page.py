"""The page in a real browser: layout, accessible text, and no external requests."""

import html
import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from sparkwright import html as pages
from sparkwright.html import HostChecks
from tests.html import weeks

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
PLOTS_A_HOST = 4

#: tells what the browser made of the page; only the test's copy holds it
PROBE = """
<pre id="probe"></pre><script>
addEventListener('load', () => {
  const box = one => { const b = one.getBoundingClientRect(); return {x: b.x, y: b.y, w: b.width, h: b.height}; };
  const plots = [...document.querySelectorAll('section > svg')].map(one => ({
    label: one.getAttribute('aria-label'), role: one.getAttribute('role'), box: box(one),
    texts: [...one.querySelectorAll('text')].map(t => ({words: t.textContent, ...box(t)})),
    shapes: [...one.querySelectorAll('polyline, rect.state')].map(s => ({kind: s.getAttribute('class'), fill: getComputedStyle(s).fill, ...box(s)})),
  }));
  document.getElementById('probe').textContent = JSON.stringify({
    plots, wide: document.documentElement.scrollWidth, screen: innerWidth,
    tables: [...document.querySelectorAll('table.spans')].map(t => t.rows.length - 1),
    headings: [...document.querySelectorAll('h1, h2')].map(h => h.textContent),
    fetched: performance.getEntriesByType('resource').map(r => r.name),
    heads: [...document.querySelectorAll('th')].every(th => th.hasAttribute('scope')),
    captions: [...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent.trim()),
  });
});
</script>
"""


def make_week() -> list[HostChecks]:
    """Return one host with all kinds of checks, one without checks, and one that could not be reached."""

    def change(hours: float) -> dict[str, Any] | None:
        if 50 <= hours < 60:
            return None
        more: dict[str, Any] = {"memory_gib": 18 + 2 * (hours % 5)}
        if hours % 6 == 0:
            more["tok_per_s"] = 48 + hours % 7
        return more | ({"state": "down", "why": "<b>exited</b> & gone"} if 80 <= hours < 84 else {})

    silent = HostChecks("spark3", weeks.SINCE_S, weeks.UNTIL_S, error="unreachable: 10.0.0.3 refuses connections.")
    return [weeks.make_host(weeks.make_checks(change)), weeks.make_host([], "spark2"), silent]


@pytest.fixture(scope="module")
def page() -> str:
    return pages.page(make_week(), weeks.SINCE_S, weeks.UNTIL_S)


@pytest.fixture(scope="module")
def browsed(page: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the probe's view of the page in a narrow browser window: a page that fits there fits a wide one."""
    if BROWSER is None:
        pytest.skip("no browser here (Debian: chromium)")
    folder = tmp_path_factory.mktemp("browser")
    script_allowed = page.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    copy = folder / "report.html"
    copy.write_text(script_allowed.replace("</body>", f"{PROBE}</body>"))
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder}/user",
    ]
    words = [BROWSER, *flags, "--window-size=600,900", "--dump-dom", copy.as_uri()]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    match = re.search(r'<pre id="probe">(.*?)</pre>', result.stdout, re.S)
    assert match, result.stderr[-500:]
    return dict(json.loads(html.unescape(match[1])))


def refuse_disorder(plot: dict[str, Any]) -> None:
    """Fail if a part of a plot, as the browser laid it out, leaves its frame, or a word covers another one."""
    frame = plot["box"]
    for part in [*plot["shapes"], *plot["texts"]]:
        assert part["x"] >= frame["x"] - 1, part
        assert part["x"] + part["w"] <= frame["x"] + frame["w"] + 1, part
        assert part["y"] >= frame["y"] - 1, part
        assert part["y"] + part["h"] <= frame["y"] + frame["h"] + 2, part
    words = [text for text in plot["texts"] if text["w"]]
    for at, word in enumerate(words):
        for other in words[at + 1 :]:
            apart = word["x"] + word["w"] <= other["x"] + 1 or other["x"] + other["w"] <= word["x"] + 1
            above = word["y"] + word["h"] <= other["y"] + 2 or other["y"] + other["h"] <= word["y"] + 2
            assert apart or above, (word, other)


def test_every_plot_is_drawn_and_named(browsed: dict[str, Any]) -> None:
    assert len(browsed["plots"]) == PLOTS_A_HOST
    for plot in browsed["plots"]:
        assert plot["role"] == "img"
        assert "spark1" in plot["label"]
        assert "table" in plot["label"]
        assert plot["box"]["w"] > 300
        assert plot["box"]["h"] > 20
        assert plot["shapes"]


def test_nothing_is_drawn_outside_its_plot_or_over_another_word(browsed: dict[str, Any]) -> None:
    for plot in browsed["plots"]:
        refuse_disorder(plot)


def test_states_differ_in_colour_and_a_line_is_broken_where_nothing_is_known(browsed: dict[str, Any]) -> None:
    states, _, memory, _ = browsed["plots"]
    fills = {shape["kind"]: shape["fill"] for shape in states["shapes"]}
    assert len(set(fills.values())) == len(fills) == 2
    assert [shape["kind"] for shape in memory["shapes"]] == ["line", "line"]
    left, right = sorted(memory["shapes"], key=lambda value: float(value["x"]))
    assert right["x"] - (left["x"] + left["w"]) > 10


def test_it_fits_a_small_window_and_fetches_nothing(browsed: dict[str, Any], page: str) -> None:
    assert browsed["wide"] <= browsed["screen"]
    assert browsed["fetched"] == []
    assert "<script" not in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", page)
    assert "url(" not in page


def test_the_table_holds_what_the_plots_show(browsed: dict[str, Any]) -> None:
    assert browsed["tables"] == [len(make_week()[0].spans)]
    assert browsed["heads"]
    assert browsed["captions"]
    assert browsed["headings"][1:] == ["spark1", "spark2", "spark3"]


def test_words_of_a_host_are_words_and_not_html(page: str) -> None:
    assert "&lt;b&gt;exited&lt;/b&gt; &amp; gone" in page
    assert "<b>exited" not in page


def test_a_host_without_checks_and_one_that_is_away_are_told(page: str) -> None:
    assert "sparkwright health.install --host spark2" in page
    assert "unreachable: 10.0.0.3 refuses connections." in page


def test_a_week_of_eight_hosts_is_small(page: str) -> None:
    assert len(page) < 8 * 100_000 / 2
