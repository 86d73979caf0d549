"""The page that shows hosts over time, with a table of the same values below each host's plots."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from sparkwright import units
from sparkwright.health.record import STATES
from sparkwright.html import plot
from sparkwright.html.checks import HostChecks
from sparkwright.html.page import render

MAX_TEMPERATURE_C = 100.0


def render_hosts_page(hosts: Sequence[HostChecks], since_s: float, until_s: float) -> str:
    """Return the HTML page of all hosts. Times are in seconds since the epoch."""
    zone = time.strftime("%Z (UTC%z)", time.localtime(until_s))
    return render(
        "hosts_page.html.j2",
        {"clock": format_time, "figure": format_number},
        hosts=[_host_context(host) for host in hosts],
        since=format_time(since_s),
        until=format_time(until_s),
        zone=zone,
        states=STATES,
    )


def format_time(time_s: float | None) -> str:
    """Format a time in this machine's time zone; a dash if it is unknown."""
    return "-" if time_s is None else units.format_time(time_s, units.MINUTE_FORMAT)


def format_number(value: float | None, digits: int = 1) -> str:
    """Return a number as text, or a dash if it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def _host_context(host: HostChecks) -> dict[str, Any]:
    share = host.ok_share
    rates, memory, temperatures = (
        [value for _, value in host.points(name)] for name in ("tok_per_s", "memory_gib", "temperature_c")
    )
    facts = [
        ("checks", f"{len(host.checks):,}"),
        ("ok, share of known time", "-" if share is None else f"{100 * share:.1f} %"),
        ("unknown", f"{100 * host.unknown_share:.1f} %"),
        ("periods not ok", f"{len(host.episodes)}"),
        ("tok/s, slowest to fastest", f"{min(rates):.1f} to {max(rates):.1f}" if rates else "-"),
        ("baseline, tok/s", format_number(host.baseline_tok_per_s)),
        ("lowest free memory", f"{units.format_gib(min(memory) * units.GIB)} GiB" if memory else "-"),
        ("highest temperature", f"{max(temperatures):.0f} °C" if temperatures else "-"),
    ]
    return {"host": host, "facts": facts, "plots": _render_plots(host) if host.checks else []}


def _render_plots(host: HostChecks) -> list[Markup]:
    axis = plot.time_axis(host.since_s, host.until_s)
    table = f"The table of {host.name} below contains the same values."
    baseline = host.baseline_tok_per_s
    time_plots = {
        "tok_per_s": plot.TimePlot(
            "tok/s of one stream", reference=("baseline", baseline) if baseline else None, joined=True
        ),
        "memory_gib": plot.TimePlot("memory free, GiB"),
        "temperature_c": plot.TimePlot("temperature, °C", top=MAX_TEMPERATURE_C),
    }
    states = plot.render_states(host.periods, axis, f"States of {host.name} over time. {table}")
    lines = [
        plot.render_time_series(
            time_plot, host.points(name), axis, host.span_s, f"{time_plot.name} of {host.name} over time. {table}"
        )
        for name, time_plot in time_plots.items()
    ]
    return [Markup(line) for line in (states, *lines)]  # plot.py escapes all text
