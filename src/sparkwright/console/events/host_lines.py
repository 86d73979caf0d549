"""The state of each host in a run, and one plain-text line per host for logs, pipes and cron."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sparkwright import units
from sparkwright.console import formatters
from sparkwright.console.events import lines
from sparkwright.console.events.lines import failure_lines, print_plain
from sparkwright.engines.engine import DEFAULT_ENGINE, get_engine
from sparkwright.errors import Exit
from sparkwright.protocol.events import COUNTS, Event

VERDICTS = {
    Exit.OK: "ok",
    Exit.CHANGES: "would change",
    Exit.FAILED: "failed",
    Exit.UNREACHABLE: "unreachable",
    Exit.INCONCLUSIVE: "inconclusive",
    Exit.REFUSED: "refused",
}
STYLES = {"ok": "ok", "changed": "changed", "would change": "changed", "waiting": "muted", "running": "muted"}
#: module that completes the restore of the previous server
RESTORE_MODULE = "grant_restart_previous"
PROOF_MODULES = ("verify_health", "liveness", "smoke_test", "verdict")

VERDICT_WIDTH = 12
#: limit on the characters of a host's message on its line
MAX_MESSAGE_CHARS = 1000

#: matches the message of a run that failed because of another member
OTHER_MEMBER_PATTERN = re.compile(r"(?:lost )?([A-Za-z0-9_.-]{1,64}) \(rank \d{1,3}\)")

#: matches the message of a run whose own rank exited
RANK_EXITED_PATTERN = re.compile(r"rank \d{1,3} exited")


@dataclass
class HostRow:
    """The state of one host."""

    host: str
    #: the running task, or the final message
    stage: str = ""
    progress: str = ""
    #: waiting, running, or the outcome
    verdict: str = "waiting"
    proof: str = ""
    counts_text: str = ""
    #: True if the previous server was restored
    restored: bool = False
    #: the first failed task
    failure: Event | None = None
    #: name of an earlier host that failed for the same reason
    same_as: str = ""
    #: start of the run in monotonic seconds; None if it has not started
    began_s: float | None = None
    #: duration of the run in seconds; None if it has not ended
    duration_s: float | None = None

    @property
    def style(self) -> str:
        return STYLES.get(self.verdict, "failed")

    @property
    def ended(self) -> bool:
        """True if the host's run has ended."""
        return self.duration_s is not None


@dataclass
class Board:
    """The rows of all hosts."""

    #: returns monotonic seconds
    clock: Callable[[], float] = time.monotonic
    rows: dict[str, HostRow] = field(default_factory=dict)

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the run."""
        self.rows = {name: HostRow(name) for name in names}

    def on(self, event: Event) -> None:
        """Update the row of an event's host."""
        row = self.rows.get(event.get("host", ""))
        handle = getattr(self, f"_on_{event['event']}", None)
        if row is not None and handle is not None:
            handle(row, event)

    def elapsed_s(self, row: HostRow) -> float | None:
        """Return how long a host has been running, or ran, in seconds; None if it has not started."""
        if row.duration_s is not None or row.began_s is None:
            return row.duration_s
        return self.clock() - row.began_s

    def format_totals(self) -> str:
        """Return a summary such as "8 hosts: 6 ok, 1 failed, 1 waiting"."""
        verdicts = [row.verdict for row in self.rows.values()]
        parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)]
        return f"{lines.count_hosts(self.rows)}: {', '.join(parts)}"

    def select_rows(self, max_rows: int) -> list[HostRow]:
        """Return at most this many rows in inventory order, preferring running and failed hosts."""
        rows = list(self.rows.values())
        if len(rows) <= max_rows:
            return rows
        ranked_rows = sorted(rows, key=_display_priority)[:max_rows]
        return [row for row in rows if row in ranked_rows]

    def _on_run_started(self, row: HostRow, event: Event) -> None:
        row.verdict, row.duration_s = "running", None
        row.began_s = self.clock() if row.began_s is None else row.began_s

    def _on_task_started(self, row: HostRow, event: Event) -> None:
        stage = event.get("stage")
        row.stage, row.progress = f"{stage}: {event['name']}" if stage else event["name"], ""

    def _on_progress(self, row: HostRow, event: Event) -> None:
        row.verdict = "running" if row.verdict == "waiting" else row.verdict
        share = f"{100 * event['done'] / event['total']:3.0f}%  " if event["total"] else ""
        row.progress = f"{share}{formatters.format_progress(event['done'], event['total'], event['unit'])}"
        row.stage = row.stage or event["text"]

    def _on_task_finished(self, row: HostRow, event: Event) -> None:
        row.progress = ""
        if event["status"] == "failed":
            row.failure = row.failure or event
        elif event["module"] in PROOF_MODULES and event["msg"] and event["status"] != "skipped":
            row.proof = event["msg"]
        row.restored |= event["module"] == RESTORE_MODULE and event["status"] in ("ok", "changed")

    def _on_waiting(self, row: HostRow, event: Event) -> None:
        row.verdict, row.stage, row.progress = "waiting", "", ""

    def _on_recap(self, row: HostRow, event: Event) -> None:
        code = Exit(event["exit"])
        row.verdict = "changed" if code is Exit.OK and event["changed"] else VERDICTS[code]
        row.verdict += ", restored" if code is Exit.FAILED and row.restored else ""
        row.duration_s, row.progress = float(event["seconds"]), ""
        row.counts_text = " ".join(f"{name}={event[name]}" for name in COUNTS if event[name])
        fix = row.failure["fix"] if row.failure else ""  # printed with the failure's explanation
        message = event.get("msg", "").removeprefix(f"{row.host}: ").removeprefix(f"{row.verdict}: ")
        row.stage = message.removesuffix(fix).rstrip() or row.proof or row.counts_text
        row.same_as = next((item.host for item in self.rows.values() if _has_same_failure(item, row)), "")

    _on_host_finished = _on_recap


def _has_same_failure(first_row: HostRow, row: HostRow) -> bool:
    """Return True if a host failed for the same reason as the first one."""
    if first_row is row or row.style != "failed" or not first_row.ended or first_row.same_as:
        return False
    return (first_row.verdict, first_row.stage, _failure_details(first_row)) == (
        row.verdict,
        row.stage,
        _failure_details(row),
    )


def _failure_details(row: HostRow) -> list[object]:
    failure = row.failure or {}
    return [failure.get("fix"), failure.get("where"), (failure.get("data") or {}).get("evidence")]


def _display_priority(row: HostRow) -> int:
    return 0 if row.style == "failed" else 1 if row.verdict == "running" else 3 if row.ended else 2


class HostLines(lines.Presenter):
    """Prints one line of plain text per host.

    In a cluster, failed members are printed once the root cause is known, root cause first. Notes from tasks are shown as well,
    because there are few hosts and a note may explain how they differ.

    Args:
        write: called with the style and the text of a line.
        is_cluster: True if the hosts are a cluster.
    """

    #: whether to show notes that are meant for task-by-task output
    shows_details = True

    def __init__(
        self, *, write: Callable[[str, str], None] = print_plain, board: Board | None = None, is_cluster: bool = False
    ) -> None:
        super().__init__(write)
        self.board = board or Board()
        self._is_cluster = is_cluster
        self._unprinted_rows: list[HostRow] = []
        self._reported_hosts: set[str] = set()

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the run."""
        self.board.set_hosts(names)
        self._host_width = max(map(len, names), default=0)

    def on(self, event: Event) -> None:
        self.board.on(event)
        super().on(event)

    def _on_play_started(self, event: Event) -> None:
        self.write("title", f"PLAY [{event['play']}] {formatters.join_names(event['hosts'])}")

    def _on_run_started(self, event: Event) -> None:
        if notice := self._sandbox_notice(event):
            self.write("muted", notice)

    def _on_note(self, event: Event) -> None:
        if (self._is_cluster or not event["task"]) and (self.shows_details or not event.get("detail")):
            prefix = f"{'':<{VERDICT_WIDTH}} {event['host']:<{self._host_width}}  "
            self.write("muted", prefix + event["text"].replace("\n", "\n" + " " * len(prefix)))

    def _on_host_finished(self, event: Event) -> None:
        row = self.board.rows[event["host"]]
        self._reported_hosts.add(row.host)
        self._unprinted_rows.append(row)
        if not self._is_cluster or self._is_cause_known(row):
            self._print_ended_hosts()

    def _on_recap(self, event: Event) -> None:
        if event["host"] not in self._reported_hosts:
            self._on_host_finished(event)

    def _is_cause_known(self, last_row: HostRow) -> bool:
        """Return True if all hosts have ended, or if `last_row` was refused for a reason unrelated to other members."""
        # it may take minutes before other members fail because of the refusal
        is_refused = last_row.verdict == VERDICTS[Exit.REFUSED] and not is_caused_by_another(last_row)
        return is_refused or all(row.ended for row in self.board.rows.values())

    def _print_ended_hosts(self) -> None:
        rows, self._unprinted_rows = self._unprinted_rows, []
        for row in order_by_cause(rows) if self._is_cluster else rows:
            self.print_host(row)

    def close(self) -> None:
        self._print_ended_hosts()
        self.write("", "")
        self.write("title", self.board.format_totals())
        super().close()

    def print_host(self, row: HostRow) -> None:
        """Print the line of a finished host."""
        duration = units.format_duration(row.duration_s or 0)
        stage = formatters.same_reason(row.same_as) if row.same_as else row.stage[:MAX_MESSAGE_CHARS].replace("\n", " ")
        self.write(row.style, f"{row.verdict:<{VERDICT_WIDTH}} {row.host:<{self._host_width}}  {duration:>6}  {stage}")
        if row.failure is not None and not row.same_as:
            for style, text in failure_lines(row.failure, " " * (VERDICT_WIDTH + 1)):
                self.write(style, text)


def order_by_cause(rows: Iterable[HostRow]) -> list[HostRow]:
    """Return the rows of members that have ended, root cause first.

    A rank that exited comes before a server that answered with an error, and both before members that lost contact with another.
    """
    return sorted(
        rows, key=lambda row: (is_caused_by_another(row), not RANK_EXITED_PATTERN.match(_failure_message(row)))
    )


def _failure_message(row: HostRow) -> str:
    return row.failure["msg"] if row.failure else ""


def is_caused_by_another(row: HostRow) -> bool:
    """Return True if a member failed because of another."""
    message = _failure_message(row)
    member_match, parallel = OTHER_MEMBER_PATTERN.match(message), get_engine(DEFAULT_ENGINE).parallel
    return bool((member_match and member_match[1] != row.host) or (parallel and parallel.is_peer_failure(message)))
