"""The screen of `status --watch`: complete in 80 columns, with the selected host always visible."""

from typing import Any

import pytest

from sparkwright.app.queries.watch import TokenRates
from sparkwright.console import watch
from sparkwright.console.rows import GatewayRow, HostStatus, RoutedModel, Upstream
from sparkwright.console.watch import HistoryEntry, Traffic, View
from sparkwright.health.record import Gpu, Record


def make_row(host: str, state: str = "ok", **fields: Any) -> HostStatus:
    rates: dict[str, Any] = {"tok_per_s": 47.0, "baseline_tok_per_s": 48.0}
    return HostStatus(host, state, recipe="qwen3.5-35b", checked_s=60, scheduled=True, **rates, **fields)


def screen_text(view: View, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in watch.screen_lines(view, width, height)]


def test_screen_of_80_columns_has_the_fleet_and_the_history_of_the_selected_host() -> None:
    rows = [make_row(f"spark{n}") for n in range(1, 8)] + [make_row("spark8", "degraded", why="swap is 93 % full")]
    traffic = {"spark2": Traffic(3, 2, 141.5, 61)}
    history = {"spark2": [HistoryEntry(1.8e9, "verified  by ops@laptop")]}
    lines = screen_text(View(rows, traffic, history, selected_index=1, answered_at="12:30:05"))
    text = "\n".join(lines)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "12:30:05" in lines[0] and "7 ok, 1 degraded" in lines[0]
    selected = next(line for line in lines if line.startswith(">"))
    assert "spark2" in selected and "3 + 2 waiting" in selected and "141.5" in selected
    assert "swap is 93 % full" in text and "verified  by ops@laptop" in text and "q quit" in lines[-1]


@pytest.mark.parametrize("selected", [0, 17, 39])
def test_selected_host_is_visible_in_a_large_fleet(selected: int) -> None:
    lines = screen_text(View([make_row(f"spark{n}") for n in range(40)], selected_index=selected), height=16)
    assert len(lines) <= 16
    assert any(line.startswith(f">  spark{selected} ") for line in lines) and any("more" in line for line in lines)


def test_gateway_is_below_the_hosts() -> None:
    models = [RoutedModel("small", 7, 1, 2, 0, [Upstream("spark1", "up", 1, 7)])]
    gateway_host = make_row("spark1", gateway=GatewayRow("lab", 8080, "up", models=models))
    lines = screen_text(View([gateway_host, make_row("spark2")]), height=14)
    at = next(n for n, line in enumerate(lines) if "lab (spark1:8080)" in line)
    assert "small" in lines[at] and "spark2" in "\n".join(lines[:at]) and "q quit" in lines[-1]


@pytest.mark.parametrize("width", [30, 40, 60])
def test_narrow_screen_shows_how_to_quit(width: int) -> None:
    assert "q quit" in screen_text(View([make_row("spark1")]), width=width)[-1]


def test_markup_and_control_characters_are_printed_as_text() -> None:
    rows = [make_row("spark1", "down", why="[bold]\x1b[2J gone")]
    lines = screen_text(View(rows, history={"spark1": [HistoryEntry(1.8e9, "x\x1b]0;y")]}))
    assert not any("\x1b" in line for line in lines) and any("[bold]" in line for line in lines)


def test_rate_is_computed_from_two_answers_of_the_same_server() -> None:
    rates = TokenRates()

    def update(time_s: float, **traffic: float) -> Traffic:
        return rates.update("spark1", {"record": {"state": "ok", "why": ""}, "traffic": traffic}, time_s)

    assert update(10.0, generated=100, running=1).tok_per_s is None
    assert update(15.0, generated=350, running=1) == Traffic(1, None, 50.0, None)
    assert update(20.0, generated=20, running=1).tok_per_s is None  # the counter of another server
    assert update(25.0) == Traffic()


def test_current_temperature_is_preferred_to_that_of_the_check() -> None:
    record = Record(time_s=1.8e9, state="ok", seen="ok", since_s=1.8e9, gpu=Gpu(50)).to_json()
    assert TokenRates().update("spark1", {"record": record, "traffic": {"temperature_c": 71}}, 0.0).temperature_c == 71
    assert TokenRates().update("spark1", {"record": record}, 0.0).temperature_c == 50
