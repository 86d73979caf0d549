"""The screen of `status --watch`: complete in 80 columns, with the marked host always visible, and only changes sent."""

from typing import Any

import pytest

from sparkwright.app.queries.watch import TokenRates
from sparkwright.console import watch
from sparkwright.console.rows import GatewayRow, HostStatus, RoutedModel, Upstream
from sparkwright.console.watch import HistoryEntry, Traffic, View
from sparkwright.health.record import Gpu, Record


def make_row(host: str, state: str = "ok", **more: Any) -> HostStatus:
    return HostStatus(
        host, state, recipe="qwen3.5-35b", tok_per_s=47.0, baseline_tok_per_s=48.0, checked_s=60, scheduled=True, **more
    )


def screen_text(view: View, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain for line in watch.screen_lines(view, width, height)]


def test_in_80_columns_a_fleet_has_its_requests_rate_and_the_marked_ones_acts() -> None:
    rows = [make_row(f"spark{n}") for n in range(1, 8)] + [make_row("spark8", "degraded", why="swap is 93 % full")]
    traffic = {"spark2": Traffic(3, 2, 141.5, 61)}
    acts = {"spark2": [HistoryEntry(1.8e9, "verified  by ops@laptop")]}
    lines = screen_text(View(rows, traffic, acts, selected=1, answered_at="12:30:05"))
    text = "\n".join(lines)
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert "12:30:05" in lines[0] and "7 ok, 1 degraded" in lines[0]
    marked = next(line for line in lines if line.startswith(">"))
    assert "spark2" in marked and "3 + 2 waiting" in marked and "141.5" in marked
    assert "swap is 93 % full" in text and "verified  by ops@laptop" in text and "q quit" in lines[-1]


@pytest.mark.parametrize("chosen", [0, 17, 39])
def test_the_marked_host_is_on_the_screen_whatever_the_fleet(chosen: int) -> None:
    lines = screen_text(View([make_row(f"spark{n}") for n in range(40)], selected=chosen), height=16)
    assert len(lines) <= 16
    assert any(line.startswith(f">  spark{chosen} ") for line in lines) and any("more" in line for line in lines)


def test_a_gateway_is_below_the_hosts() -> None:
    models = [RoutedModel("small", 7, 1, 2, 0, [Upstream("spark1", "up", 1, 7)])]
    carrier = make_row("spark1", gateway=GatewayRow("lab", 8080, "up", models=models))
    lines = screen_text(View([carrier, make_row("spark2")]), height=14)
    at = next(n for n, line in enumerate(lines) if "lab (spark1:8080)" in line)
    assert "small" in lines[at] and "spark2" in "\n".join(lines[:at]) and "q quit" in lines[-1]


def test_a_narrow_window_tells_how_to_leave_it() -> None:
    for width in (30, 40, 60):
        assert "q quit" in screen_text(View([make_row("spark1")]), width=width)[-1]


def test_what_a_host_says_is_text() -> None:
    lines = screen_text(
        View(
            [make_row("spark1", "down", why="[bold]\x1b[2J gone")],
            history={"spark1": [HistoryEntry(1.8e9, "x\x1b]0;y")]},
        )
    )
    assert not any("\x1b" in line for line in lines) and any("[bold]" in line for line in lines)


def test_a_rate_needs_two_looks_at_one_server() -> None:
    def answer(total: float | None) -> dict[str, Any]:
        return {
            "record": {"state": "ok", "why": ""},
            "traffic": {} if total is None else {"generated": total, "running": 1},
        }

    rates = TokenRates()
    assert rates.update("spark1", answer(100), 10.0).tok_per_s is None
    assert rates.update("spark1", answer(350), 15.0) == Traffic(1, None, 50.0, None)
    assert rates.update("spark1", answer(20), 20.0).tok_per_s is None  # another server: its counter begins again
    assert rates.update("spark1", answer(None), 25.0) == Traffic()


def test_the_temperature_is_of_now_where_the_host_tells_it() -> None:
    record = Record(time_s=1.8e9, state="ok", seen="ok", since_s=1.8e9, gpu=Gpu(50)).to_json()
    assert TokenRates().update("spark1", {"record": record, "traffic": {"temperature_c": 71}}, 0.0).temperature_c == 71
    assert TokenRates().update("spark1", {"record": record}, 0.0).temperature_c == 50
