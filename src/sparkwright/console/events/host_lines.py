"""Many hosts as plain text, for logs, pipes and cron: one line per finished host, with an explanation of a failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from sparkwright import units
from sparkwright.console import words
from sparkwright.console.events import rollout_lines
from sparkwright.console.events.board import VERDICTS, Board, Row
from sparkwright.console.events.lines import explained, plain
from sparkwright.engines.engine import USUAL, of
from sparkwright.errors import Exit
from sparkwright.protocol.events import Event

WIDTH_VERDICT = 12
#: most characters of a host's message on its line
LONGEST = 1000


class HostLines:
    """One line of plain text per host.

    In a cluster the lines of failed members are held back until the root cause is known, which is printed first. Notes of tasks
    are shown there: there are few hosts, and a note may be what differs between them.

    Args:
        write: called with the style and the text of a line.
        together: the hosts are a cluster.
    """

    #: also notes of interest only to a person who reads task by task
    details = True

    def __init__(
        self, *, write: Callable[[str, str], None] = plain, board: Board | None = None, together: bool = False
    ) -> None:
        self.write = write
        self.board = board or Board()
        self._together = together
        self._held: list[Row] = []
        self._reported: set[str] = set()
        self._sandboxes: set[str] = set()
        self._rolled: Event | None = None

    def hosts(self, names: list[str]) -> None:
        """Set the hosts of the run."""
        self.board.hosts(names)
        self._width = max(map(len, names), default=0)

    def on(self, event: Event) -> None:
        kind, host = event["event"], event.get("host", "")
        self.board.on(event)
        if kind == "play_started":
            self.write("title", f"PLAY [{event['play']}] {words.names(event['hosts'])}")
        elif kind == "looking":
            self.write("muted", rollout_lines.looking(event))
        elif kind == "batch_started":
            self.write("title", rollout_lines.batch(event))
        elif kind == "run_started" and event.get("sandbox") and host not in self._sandboxes:
            self._sandboxes.add(host)
            self.write("muted", words.simulated(host))
        elif kind == "note" and (self._together or not event["task"]) and (self.details or not event.get("detail")):
            start = f"{'':<{WIDTH_VERDICT}} {host:<{self._width}}  "
            self.write("muted", start + event["text"].replace("\n", "\n" + " " * len(start)))
        elif kind == "host_finished" or (kind == "recap" and host not in self._reported):
            self._reported.add(host)
            self._held.append(self.board.rows[host])
            if not self._together or self._cause_is_known(self.board.rows[host]):
                self._tell_ends()
        elif kind == "rolled":
            self._rolled = event

    def _cause_is_known(self, last: Row) -> bool:
        """Return True if all hosts have ended, or if one was refused on its own, which the others may not notice for minutes."""
        refused = last.verdict == VERDICTS[Exit.REFUSED] and not because_of_another(last)
        return refused or all(row.ended for row in self.board.rows.values())

    def _tell_ends(self) -> None:
        held, self._held = self._held, []
        for row in first(held) if self._together else held:
            self.ended(row)

    def close(self) -> None:
        self._tell_ends()
        self.write("", "")
        self.write("title", self.board.totals())
        for style, text in rollout_lines.lines(self._rolled) if self._rolled else ():
            self.write(style, text)

    def ended(self, row: Row) -> None:
        """Print the line of a finished host."""
        took = units.duration(row.took_s or 0)
        stage = words.as_of(row.like) if row.like else row.stage[:LONGEST].replace("\n", " ")
        self.write(row.style, f"{row.verdict:<{WIDTH_VERDICT}} {row.host:<{self._width}}  {took:>6}  {stage}")
        if row.failure is not None and not row.like:
            for style, text in explained(row.failure, " " * (WIDTH_VERDICT + 1)):
                self.write(style, text)


#: message of a run about another member that failed or was lost
ANOTHER = re.compile(r"(?:lost )?([A-Za-z0-9_.-]{1,64}) \(rank \d{1,3}\)")

#: message of a run whose own rank exited
ENDED = re.compile(r"rank \d{1,3} exited")


def first(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of members that have ended, the root cause first.

    A rank that exited comes before a server that answered with an error, and both come before members that lost another.
    """
    return sorted(rows, key=lambda row: (because_of_another(row), not ENDED.match(_message(row))))


def _message(row: Row) -> str:
    return row.failure["msg"] if row.failure else ""


def because_of_another(row: Row) -> bool:
    """Return True if a member failed because of another."""
    message = _message(row)
    named, parallel = ANOTHER.match(message), of(USUAL).parallel
    return bool((named and named[1] != row.host) or (parallel and parallel.of_another(message)))
