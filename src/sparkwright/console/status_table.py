"""The table of the `status` command, with one line per host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from sparkwright import units
from sparkwright.console import grid, words
from sparkwright.console.out import width
from sparkwright.console.rows import GatewayRow, Row
from sparkwright.console.terminal import styled_line, terminal
from sparkwright.engines.log import state as log_state
from sparkwright.health.record import differs

DIGEST, COMMIT = 12, 8
STYLES = {
    **dict.fromkeys(("ok", "up"), "green"),
    **dict.fromkeys(("starting", "in progress"), "cyan"),
    **dict.fromkeys(("asleep", "unknown", "asking"), "dim"),
    "degraded": "yellow",
    "unreachable": "bold red",
}
FINE = ("ok", "up")
COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("RECIPE", 4), ("IMAGE", 8), ("ENGINE", 7), ("MODEL", 9)),
    *(("TOK/S", 3), ("UP", 5), ("LOAD", 10), ("MEMORY", 6), ("DRIFT", 1), ("CHECKED", 2), ("WHY", 0)),
)
GATEWAY_COLUMNS = grid.columns(
    *(("GATEWAY", 0), ("STATE", 0), ("MODEL", 0), ("REQUESTS", 2), ("RUNNING", 3), ("QUEUED", 0), ("ERRORS", 0)),
    *(("SERVERS", 1), ("WHY", 0)),
)


def show(rows: Sequence[Row]) -> None:
    """Print the table once."""
    terminal().print(table(rows, width()), soft_wrap=True)


def table(rows: Sequence[Row], room: int | None = None) -> Text:
    """Return the table. States and their reasons are never cut.

    Args:
        room: columns of the terminal; None for no limit.
    """
    cells = [_cells(row) for row in rows]
    title, *shown = grid.lines(COLUMNS, [[cell[column.title] for column in COLUMNS] for cell in cells], room)
    styles = [style_of(row.state) for row in rows]
    return Text("\n").join([*_drawn(title, shown, styles), *gateways(rows, room)])


def gateways(rows: Sequence[Row], room: int | None) -> list[Text]:
    """Return the lines of the gateways' table: an empty line, the titles, and a line per model; none without gateways."""
    found = [pair for row in rows if row.gateway is not None for pair in _routed(row.host, row.gateway)]
    if not found:
        return []
    title, *shown = grid.lines(GATEWAY_COLUMNS, [list(pair) for pair in found], room)
    return [Text(), *_drawn(title, shown, [style_of(pair[1]) for pair in found])]


def _routed(host: str, gateway: GatewayRow) -> Iterator[tuple[str, ...]]:
    at = f"{gateway.name} ({host.partition('/')[0]}:{gateway.port})"
    for n, model in enumerate(gateway.models):
        servers = ", ".join(f"{row.host} {row.state} ({row.running})" for row in model.servers)
        counts = (str(count) for count in (model.requests, model.running, model.queued, model.errors))
        yield at if n == 0 else "", gateway.state, model.model, *counts, servers, gateway.why if n == 0 else ""
    if not gateway.models:
        yield at, gateway.state, *("-" for _ in GATEWAY_COLUMNS[2:-1]), gateway.why


def _drawn(title: Sequence[grid.Line], shown: Sequence[Sequence[grid.Line]], styles: Sequence[str]) -> list[Text]:
    lines = [Text(grid.text(line), style="dim") for line in title]
    return lines + [
        styled_line(line, "STATE", style) for style, value in zip(styles, shown, strict=True) for line in value
    ]


def style_of(state: str) -> str:
    """Return the style of a state."""
    return STYLES.get(state, "bold red")


def _cells(row: Row) -> dict[str, str]:
    return {
        "HOST": named(row),
        "STATE": row.state,
        "RECIPE": row.recipe or "-",
        "IMAGE": row.digest.removeprefix("sha256:")[:DIGEST] or row.image or "-",
        "ENGINE": row.engine_version or "-",
        "MODEL": f"{row.model.rpartition('/')[2]}@{row.commit[:COMMIT]}" if row.model else "-",
        "TOK/S": speed(row),
        "UP": "-" if row.up_s is None else units.age(row.up_s),
        "LOAD": log_state.sentence(row.load_s) or "-",
        "MEMORY": _memory(row),
        "DRIFT": _drift(row),
        "CHECKED": checked(row),
        "WHY": why(row),
    }


def named(row: Row) -> str:
    """Return the host's name. A sandbox with a different name is marked as one."""
    return f"{row.host} (sandbox)" if row.sandbox and row.host.partition("/")[0] != "sandbox" else row.host


def speed(row: Row) -> str:
    """Return the current throughput and the baseline; a dash if it was not measured."""
    if row.tok_per_s is None and row.baseline_tok_per_s is None:
        return "-"
    now = "-" if row.tok_per_s is None else f"{row.tok_per_s:.1f}"
    return now if row.baseline_tok_per_s is None else f"{now} / {row.baseline_tok_per_s:.1f}"


def _memory(row: Row) -> str:
    if row.memory_available_bytes is None:
        return "-"
    total = "" if row.memory_total_bytes is None else f" of {row.memory_total_bytes / units.GIB:.0f}"
    return f"{units.gib(row.memory_available_bytes)}{total} GiB free"


def _drift(row: Row) -> str:
    behind = f"behind the lock: {', '.join(row.behind)}" if row.behind else ""
    if "recipe" in row.behind:
        behind = f"{row.recipe} is not deployed yet"
    drift = differs(row.drift) if row.drift else ""
    return "; ".join(filter(None, (drift, behind))) or ("-" if row.drift is None else "none")


def checked(row: Row) -> str:
    """Return the age of the last check, or "now" if the row is live."""
    if row.live:
        return "now" if row.scheduled else "now, no schedule"
    return "-" if row.checked_s is None else f"{units.age(row.checked_s)} ago"


def why(row: Row) -> str:
    """Return the reason for a row's state.

    This is a run in progress, an interrupted run, or else the reason why the server is not healthy. For a server that seems
    healthy it is the reason why there is no valid check.
    """
    fine = "flapping: it changed state several times in the last checks" if row.flapping else ""
    answer = row.busy or row.interrupted or (fine if row.state == "ok" else row.why)
    return words.line("; ".join(filter(None, (answer, row.outdated if row.state in FINE and not row.busy else ""))))
