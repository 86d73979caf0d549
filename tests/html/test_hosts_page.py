"""The hosts page in a real browser: layout, accessible text, and no external requests."""

import re
from typing import Any

import pytest

from sparkwright import html as pages
from sparkwright.html import HostChecks
from tests.html import browser, weeks

PLOTS_PER_HOST = 4
PROBE = """{
  plots: [...document.querySelectorAll('section > svg')].map(
    svg => ({label: svg.getAttribute('aria-label'), ...plot(svg, 'polyline, rect.state')})
  ),
  tables: [...document.querySelectorAll('table.spans')].map(table => table.rows.length - 1),
  captions: [...document.querySelectorAll('table')].every(table => table.caption && table.caption.textContent.trim()),
}"""


def make_week() -> list[HostChecks]:
    """Return a host with all kinds of checks, a host without checks, and an unreachable one."""

    def change(hours: float) -> dict[str, Any] | None:
        if 50 <= hours < 60:
            return None
        fields: dict[str, Any] = {"memory_gib": 18 + 2 * (hours % 5)}
        if hours % 6 == 0:
            fields["tok_per_s"] = 48 + hours % 7
        return fields | ({"state": "down", "why": "<b>exited</b> & gone"} if 80 <= hours < 84 else {})

    unreachable = HostChecks("spark3", weeks.SINCE_S, weeks.UNTIL_S, error="unreachable: 10.0.0.3 refuses connections.")
    return [weeks.make_host(weeks.make_checks(change)), weeks.make_host([], "spark2"), unreachable]


@pytest.fixture(scope="module")
def page() -> str:
    return pages.render_hosts_page(make_week(), weeks.SINCE_S, weeks.UNTIL_S)


@pytest.fixture(scope="module")
def browsed(page: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The page in a narrow window: a page that fits there fits a wide one."""
    return browser.probe_page(page, PROBE, tmp_path_factory.mktemp("browser"), width=600)


def test_every_plot_is_drawn_and_labelled_without_overlaps(browsed: dict[str, Any]) -> None:
    assert len(browsed["plots"]) == PLOTS_PER_HOST
    for plot in browsed["plots"]:
        assert plot["role"] == "img" and plot["shapes"]
        assert "spark1" in plot["label"] and "table" in plot["label"]
        assert plot["box"]["w"] > 300 and plot["box"]["h"] > 20
        browser.check_layout(plot)


def test_states_differ_in_color_and_a_line_has_a_gap_without_checks(browsed: dict[str, Any]) -> None:
    states, _, memory, _ = browsed["plots"]
    fills = {shape["kind"]: shape["fill"] for shape in states["shapes"]}
    assert len(set(fills.values())) == len(fills) == 2
    assert [shape["kind"] for shape in memory["shapes"]] == ["line", "line"]
    left, right = sorted(memory["shapes"], key=lambda value: float(value["x"]))
    assert right["x"] - (left["x"] + left["w"]) > 10


def test_the_page_fits_a_small_window_and_loads_nothing(browsed: dict[str, Any], page: str) -> None:
    assert browsed["fits"] and browsed["fetched"] == []
    assert "<script" not in page
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", page)
    assert "url(" not in page


def test_the_table_has_a_row_per_span(browsed: dict[str, Any]) -> None:
    assert browsed["tables"] == [len(make_week()[0].spans)]
    assert browsed["scopes"] and browsed["captions"]
    assert browsed["headings"][1:] == ["spark1", "spark2", "spark3"]


def test_texts_of_a_host_are_escaped(page: str) -> None:
    assert "&lt;b&gt;exited&lt;/b&gt; &amp; gone" in page
    assert "<b>exited" not in page


def test_hosts_without_checks_and_unreachable_ones_are_explained(page: str) -> None:
    assert "sparkwright health.install --host spark2" in page
    assert "unreachable: 10.0.0.3 refuses connections." in page


def test_the_page_of_a_week_is_small(page: str) -> None:
    assert len(page) < 8 * 100_000 / 2
