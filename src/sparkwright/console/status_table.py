"""The table of the `status` command, with one line per host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from sparkwright import units
from sparkwright.console import formatters, grid
from sparkwright.console.command_output import terminal_width
from sparkwright.console.rows import SERVING_STATES, GatewayRow, HostStatus
from sparkwright.console.terminal import build_console, style_table_line
from sparkwright.engines.log import state as log_state
from sparkwright.health.record import UNCONFIRMED_PREFIX, format_drift

DIGEST_CHARS, COMMIT_CHARS = 12, 8
STYLES = {
    **dict.fromkeys(SERVING_STATES, "green"),
    **dict.fromkeys(("starting", "in progress"), "cyan"),
    **dict.fromkeys(("asleep", "unknown", "asking"), "dim"),
    "degraded": "yellow",
    "unreachable": "bold red",
}
COLUMNS = grid.columns(
    *(("HOST", 0), ("STATE", 0), ("RECIPE", 4), ("IMAGE", 8), ("ENGINE", 7), ("MODEL", 9)),
    *(("TOK/S", 3), ("UP", 5), ("LOAD", 10), ("MEMORY", 6), ("DRIFT", 1), ("CHECKED", 2), ("WHY", 0)),
)
GATEWAY_COLUMNS = grid.columns(
    *(("GATEWAY", 0), ("STATE", 0), ("MODEL", 0), ("REQUESTS", 2), ("RUNNING", 3), ("QUEUED", 0), ("ERRORS", 0)),
    *(("SERVERS", 1), ("WHY", 0)),
)


def print_table(rows: Sequence[HostStatus]) -> None:
    """Print the table once."""
    build_console().print(build_table(rows, terminal_width()), soft_wrap=True)


def build_table(rows: Sequence[HostStatus], max_width: int | None = None) -> Text:
    """Return the table. States and their reasons are never truncated.

    Args:
        max_width: characters per line; None if unlimited.
    """
    cells = [_cells(row) for row in rows]
    title_lines, *row_lines = grid.format_rows(
        COLUMNS, [[cell[column.title] for column in COLUMNS] for cell in cells], max_width
    )
    styles = [state_style(row.state) for row in rows]
    return Text("\n").join([*_style_lines(title_lines, row_lines, styles), *gateway_lines(rows, max_width)])


def gateway_lines(rows: Sequence[HostStatus], max_width: int | None) -> list[Text]:
    """Return the table of gateways: an empty line, the titles, and a line per model; empty without gateways."""
    cells = [
        row_cells for row in rows if row.gateway is not None for row_cells in _gateway_cells(row.host, row.gateway)
    ]
    if not cells:
        return []
    title_lines, *row_lines = grid.format_rows(GATEWAY_COLUMNS, [list(row_cells) for row_cells in cells], max_width)
    return [Text(), *_style_lines(title_lines, row_lines, [state_style(row_cells[1]) for row_cells in cells])]


def _gateway_cells(host: str, gateway: GatewayRow) -> Iterator[tuple[str, ...]]:
    label = f"{gateway.name} ({host.partition('/')[0]}:{gateway.port})"
    for n, model in enumerate(gateway.models):
        servers = ", ".join(f"{row.host} {row.state} ({row.running})" for row in model.servers)
        counts = (str(count) for count in (model.requests, model.running, model.queued, model.errors))
        yield label if n == 0 else "", gateway.state, model.model, *counts, servers, gateway.why if n == 0 else ""
    if not gateway.models:
        yield label, gateway.state, *("-" for _ in GATEWAY_COLUMNS[2:-1]), gateway.why


def _style_lines(
    title_lines: Sequence[grid.Line], row_lines: Sequence[Sequence[grid.Line]], styles: Sequence[str]
) -> list[Text]:
    lines = [Text(grid.plain_text(line), style="dim") for line in title_lines]
    return lines + [
        style_table_line(line, "STATE", style) for style, rows in zip(styles, row_lines, strict=True) for line in rows
    ]


def state_style(state: str) -> str:
    return STYLES.get(state, "bold red")


def _cells(row: HostStatus) -> dict[str, str]:
    return {
        "HOST": host_label(row),
        "STATE": row.state,
        "RECIPE": row.recipe or "-",
        "IMAGE": row.digest.removeprefix("sha256:")[:DIGEST_CHARS] or row.image or "-",
        "ENGINE": row.engine_version or "-",
        "MODEL": f"{row.model.rpartition('/')[2]}@{row.commit[:COMMIT_CHARS]}" if row.model else "-",
        "TOK/S": format_throughput(row),
        "UP": "-" if row.up_s is None else units.format_age(row.up_s),
        "LOAD": log_state.format_stages(row.load_s) or "-",
        "MEMORY": _format_memory(row),
        "DRIFT": _format_drift(row),
        "CHECKED": format_check_age(row),
        "WHY": state_reason(row),
    }


def host_label(row: HostStatus) -> str:
    """Return the host's name, marked as a sandbox unless it is the host `sandbox`."""
    return f"{row.host} (sandbox)" if row.sandbox and row.host.partition("/")[0] != "sandbox" else row.host


def format_throughput(row: HostStatus) -> str:
    """Return the current throughput and the baseline, such as "45.2 / 47.0"; a dash if both are unknown."""
    if row.tok_per_s is None and row.baseline_tok_per_s is None:
        return "-"
    current_text = "-" if row.tok_per_s is None else f"{row.tok_per_s:.1f}"
    return current_text if row.baseline_tok_per_s is None else f"{current_text} / {row.baseline_tok_per_s:.1f}"


def _format_memory(row: HostStatus) -> str:
    if row.memory_available_bytes is None:
        return "-"
    total_clause = "" if row.memory_total_bytes is None else f" of {row.memory_total_bytes / units.GIB:.0f}"
    return f"{units.format_gib(row.memory_available_bytes)}{total_clause} GiB free"


def _format_drift(row: HostStatus) -> str:
    behind_clause = f"behind the lock: {', '.join(row.behind)}" if row.behind else ""
    if "recipe" in row.behind:
        behind_clause = f"{row.recipe} is not deployed yet"
    drift_clause = format_drift(row.drift) if row.drift else ""
    return "; ".join(filter(None, (drift_clause, behind_clause))) or ("-" if row.drift is None else "none")


def format_check_age(row: HostStatus) -> str:
    """Return the age of the last check, or "now" if the row is live."""
    if row.live:
        return "now" if row.scheduled else "now, no schedule"
    return "-" if row.checked_s is None else f"{units.format_age(row.checked_s)} ago"


def state_reason(row: HostStatus) -> str:
    """Return the reason for a row's state: a run in progress, an interrupted run, or the reason why the server is not healthy.

    A healthy server has one if its last check found another state that is not confirmed yet, or is no longer valid.
    """
    details = [row.why]
    if row.state == "ok":
        flapping_reason = "flapping: it changed state several times in the last checks" if row.flapping else ""
        details = [flapping_reason, row.why if row.why.startswith(UNCONFIRMED_PREFIX) else ""]
    reason = row.busy or row.interrupted or "; ".join(filter(None, details))
    return formatters.format_value(
        "; ".join(filter(None, (reason, row.outdated if row.state in SERVING_STATES and not row.busy else "")))
    )
