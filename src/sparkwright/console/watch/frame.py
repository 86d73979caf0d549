"""The frame of `status --watch`: a line per host, the latest history of the marked host, and the keys. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from sparkwright import units
from sparkwright.console import grid, words
from sparkwright.console.status_row import Row
from sparkwright.console.status_table import checked, gateways, named, speed, style_of, why
from sparkwright.console.terminal import styled_line
from sparkwright.visible import visible

COLUMNS = grid.columns(
    *(("", 0), ("HOST", 0), ("STATE", 0), ("REQUESTS", 2), ("TOK/S", 1), ("ONE STREAM", 4)),
    *(("FREE", 3), ("GPU", 5), ("CHECKED", 6), ("RECIPE", 7), ("WHY", 0)),
)
KEYS = {"up/down": "host", "l": "logs", "d": "diagnose", "h": "history", "r": "refresh", "q": "quit"}
#: most lines of history, if there is room
ACTS = 6
#: lines for the title, the keys, and the empty lines around them
AROUND = 4


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of a server now. None means unknown."""

    #: running requests
    running: float | None = None
    #: waiting requests
    waiting: float | None = None
    #: of all streams, since the previous request
    tok_per_s: float | None = None
    #: of the GPU, now or at the last check
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """An entry of a host's history."""

    #: seconds since the epoch
    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class View:
    """The data of a frame."""

    #: in the order of the inventory
    rows: Sequence[Row] = ()
    #: by host
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    #: by host
    acts: Mapping[str, Sequence[Act]] = field(default_factory=dict)
    #: index of the marked row
    chosen: int = 0
    every_s: float = 5.0
    #: time of the last answer, as text; empty before the first
    at: str = ""

    @property
    def host(self) -> str:
        """The name of the marked host; empty while there are no rows."""
        return self.rows[self.chosen].host if self.rows else ""


def lines(view: View, width: int, height: int) -> list[Text]:
    """Return the screen: at most `height` lines of at most `width` characters."""
    below = [*gateways(view.rows, width), Text(), *_acts(view)]
    room = max(3, height - AROUND - len(below))
    body = [*_table(view, width, room), *below, Text(), _keys(width)]
    found = [_title(view), Text(), *body][:height]
    for line in found:
        line.truncate(width, overflow="ellipsis")
    return found


def _title(view: View) -> Text:
    count = Counter(row.state for row in view.rows)
    states = ", ".join(f"{number} {state}" for state, number in count.items())
    when = f"{view.at}, every {view.every_s:g} s" if view.at else "asking ..."
    return Text.assemble(("sparkwright status", "bold"), f"  {when}  {states}")


def _keys(width: int) -> Text:
    """Return the line of keys. In a narrow window the last ones before `q` are left out."""
    shown = list(KEYS.items())
    while len(shown) > 1 and sum(len(key) + len(does) + 4 for key, does in shown) > width:
        del shown[-2]
    return Text.assemble(*(part for key, does in shown for part in ((key, "bold"), (f" {does}   ", "dim"))))


def _table(view: View, width: int, room: int) -> list[Text]:
    """Return the table around the marked row. A wrapped sentence stays with its row."""
    cells = [_cells(view, number, row) for number, row in enumerate(view.rows)]
    title, *shown = grid.lines(COLUMNS, [[cell[column.title] for column in COLUMNS] for cell in cells], width)
    head = [Text(grid.text(line), style="dim") for line in title]
    blocks = [
        [styled_line(line, "STATE", style_of(row.state)) for line in found]
        for row, found in zip(view.rows, shown, strict=True)
    ]
    return head + _around(blocks, view.chosen, room - len(head))


def _around(blocks: Sequence[list[Text]], row: int, room: int) -> list[Text]:
    """Return as many rows as fit, including the marked one, and the number of hidden rows."""
    if sum(map(len, blocks)) <= room:
        return [line for block in blocks for line in block]
    first = last = min(row, len(blocks) - 1)
    taken = len(blocks[first])
    while True:
        above = first > 0 and taken + len(blocks[first - 1]) < room
        if above:
            first -= 1
            taken += len(blocks[first])
        below = last + 1 < len(blocks) and taken + len(blocks[last + 1]) < room
        if below:
            last += 1
            taken += len(blocks[last])
        if not above and not below:
            break
    hidden = len(blocks) - (last - first + 1)
    found = [line for block in blocks[first : last + 1] for line in block]
    return [*found, Text(f"  {hidden} more", style="dim")]


def _cells(view: View, number: int, row: Row) -> dict[str, str]:
    now = view.traffic.get(row.host, Traffic())
    return {
        "": ">" if number == view.chosen else " ",
        "HOST": named(row),
        "STATE": row.state,
        "REQUESTS": _requests(now),
        "TOK/S": "-" if now.tok_per_s is None else f"{now.tok_per_s:.1f}",
        "ONE STREAM": speed(row),
        "FREE": "-" if row.memory_available_bytes is None else f"{units.gib(row.memory_available_bytes)} GiB",
        "GPU": "-" if now.temperature_c is None else f"{now.temperature_c:.0f} °C",
        "CHECKED": checked(row),
        "RECIPE": row.recipe or "-",
        "WHY": visible(why(row)),
    }


def _requests(now: Traffic) -> str:
    if now.running is None:
        return "-"
    return f"{now.running:.0f}" + (f" + {now.waiting:.0f} waiting" if now.waiting else "")


def _acts(view: View) -> list[Text]:
    if view.host not in view.acts:
        return []
    found = view.acts[view.host][:ACTS]
    head = Text(f"{view.host}: last acts" if found else f"{view.host}: nothing was done to its server yet", style="dim")
    return [head, *(Text(f"  {units.moment(act.at_s)}  {visible(words.line(act.what))}") for act in found)]
