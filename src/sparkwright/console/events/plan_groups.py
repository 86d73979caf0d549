"""The changes that a plan would make, with hosts grouped by identical changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparkwright.console import formatters
from sparkwright.console.events.host_lines import Board
from sparkwright.console.events.lines import (
    Presenter,
    changed_fields,
    changed_rows,
    count_hosts,
    failure_lines,
    print_plain,
)
from sparkwright.protocol.events import Event

#: modules whose changes follow from those of other tasks, so only the task's name is shown
IMPLIED_MODULES = ("run_script",)
#: modules whose message is shown even without a change
INFORMATIVE_MODULES = ("drain",)
MAX_VALUE_CHARS = 160
#: maximum number of changed fields; if a task has more, only their number is shown
MAX_FIELDS = 10
#: maximum number of lines per changed field
MAX_FIELD_LINES = 20
PREFIX_STYLES = {"-": "removed", "+": "added"}

#: the lines of one change, as (style, text)
ChangeLines = tuple[tuple[str, str], ...]


class PlanGroups(Presenter):
    """Prints the changes once all hosts have been checked.

    Args:
        write: called with the style and the text of a line.
        show_progress: called with the progress as text, and with an empty string at the end.
    """

    def __init__(
        self,
        *,
        write: Callable[[str, str], None] = print_plain,
        show_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(write)
        self._show_progress = show_progress
        self._board = Board()
        self._changes: dict[str, dict[ChangeLines, None]] = {}
        self._ok_messages: dict[str, list[str]] = {}
        self._simulated_hosts: set[str] = set()

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the plan."""
        self._board.set_hosts(names)

    def on(self, event: Event) -> None:
        self._board.on(event)
        kind, host = event["event"], event.get("host", "")
        if kind == "play_started":
            self.write("title", f"PLAY [{event['play']}] {formatters.join_names(event['hosts'])}: what would change")
        elif kind == "run_started" and event.get("sandbox"):
            self._simulated_hosts.add(host)
        elif kind == "note" and not event.get("detail"):
            self._changes.setdefault(host, {})[(("muted", event["text"]),)] = None
        elif kind == "task_finished":
            self._add(event)
        ended_count = sum(row.ended for row in self._board.rows.values())
        self._show_progress(f"{ended_count} of {count_hosts(self._board.rows)} checked")

    def pause(self) -> None:
        """Remove the progress, for a question. The next event shows it again."""
        self._show_progress("")

    def close(self) -> None:
        self._show_progress("")
        if self._simulated_hosts:
            predicate = "is simulated" if len(self._simulated_hosts) == 1 else "are simulated"
            self.write(
                "muted",
                f"{formatters.join_names(sorted(self._simulated_hosts))} {predicate}, without a GPU or a real model.",
            )
        if len(self._board.rows) == 1:
            for message in next(iter(self._ok_messages.values()), []):
                self.write("muted", f"  {message}")
        for hosts, changes in self._groups():
            self._print_group(hosts, changes)
        self._print_unchanged()
        self._print_failures()
        self.write("title", self._board.format_totals())

    def _add(self, event: Event) -> None:
        if event["status"] == "changed":
            changes = self._changes.setdefault(event["host"], {})
            changes.update(dict.fromkeys(_task_changes(event)))
        elif (
            event["status"] == "ok" and event["msg"] and (event.get("proof") or event["module"] in INFORMATIVE_MODULES)
        ):
            self._ok_messages.setdefault(event["host"], []).append(event["msg"])

    def _groups(self) -> Iterator[tuple[list[str], list[ChangeLines]]]:
        """Yield groups of hosts with the changes that they share, largest group first."""
        hosts_by_change: dict[ChangeLines, list[str]] = {}
        for host in self._board.rows:
            for change in self._changes.get(host, ()):
                hosts_by_change.setdefault(change, []).append(host)
        groups: dict[tuple[str, ...], list[ChangeLines]] = {}
        for change, hosts in hosts_by_change.items():
            groups.setdefault(tuple(hosts), []).append(change)
        for names in sorted(groups, key=len, reverse=True):
            yield list(names), groups[names]

    def _print_group(self, hosts: list[str], changes: list[ChangeLines]) -> None:
        """Print a group, on one line if it has a single line. Its hosts are named unless it contains all hosts."""
        lines = [line for change in changes for line in change]
        label = hosts[0] if len(hosts) == 1 else count_hosts(hosts)
        if len(lines) == 1:
            self.write(lines[0][0], f"{label}: {lines[0][1]}")
        else:
            self.write("title", f"{label}:")
        if 1 < len(hosts) < len(self._board.rows):
            self.write("muted", f"  {formatters.join_names(hosts)}")
        for style, text in lines if len(lines) > 1 else ():
            self.write(style, f"  {text}")

    def _print_unchanged(self) -> None:
        unchanged_hosts = [row.host for row in self._board.rows.values() if row.ended and row.verdict == "ok"]
        if unchanged_hosts:
            self.write(
                "ok", f"{count_hosts(unchanged_hosts)} without changes: {formatters.join_names(unchanged_hosts)}"
            )

    def _print_failures(self) -> None:
        """Print each failure once, with all hosts that have it."""
        failed_rows = [row for row in self._board.rows.values() if row.ended and row.style == "failed"]
        for row in (row for row in failed_rows if not row.same_as):
            hosts = [row.host, *(other.host for other in failed_rows if other.same_as == row.host)]
            self.write("failed", f"{row.verdict}: {formatters.join_names(hosts)}: {row.stage}")
            for style, text in failure_lines(row.failure, "  ") if row.failure else ():
                self.write(style, text)


def _task_changes(event: Event) -> Iterator[ChangeLines]:
    """Yield a task's changes: each changed field, or the task's name if it reports no fields or too many."""
    diff: list[dict[str, Any]] = event.get("diff") or []
    if not diff or event["module"] in IMPLIED_MODULES or len(diff) > MAX_FIELDS:
        summary = event["msg"] or (f"{len(diff)} differences" if len(diff) > MAX_FIELDS else "")
        yield (("changed", f"{event['name']}: {summary}" if summary else event["name"]),)
        return
    for change in diff:
        comment = f"   # {change['why']}" if change.get("why") else ""
        for field, old_value, new_value in changed_fields(change):
            rows = changed_rows(old_value, new_value)
            if len(rows) == 2 and rows[0][0] == "-" and rows[1][0] == "+":
                old_text, new_text = (formatters.truncate_value(text, MAX_VALUE_CHARS) for _, text in rows)
                yield (("changed", f"{field} {old_text} -> {new_text}{comment}"),)
            else:
                lines = [
                    (
                        PREFIX_STYLES.get(prefix, "muted"),
                        f"{prefix} {field}: {formatters.truncate_value(text, MAX_VALUE_CHARS)}"
                        f"{comment if n == len(rows) - 1 else ''}",
                    )
                    for n, (prefix, text) in enumerate(rows[:MAX_FIELD_LINES])
                ]
                hidden_count = len(rows) - len(lines)
                yield (*lines, *([("muted", f"  {field}: {hidden_count} more lines")] if hidden_count > 0 else []))
