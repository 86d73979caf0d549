"""Plain-text output for logs, pipes and cron: one line per task and host, and the messages of a rolling run."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from sparkwright import units
from sparkwright.console import formatters
from sparkwright.console.command_output import terminal_width
from sparkwright.engines.budget import Budget
from sparkwright.protocol.events import KNOWN_AFTER_PREFIX, Event, format_recap
from sparkwright.visible import escape_invisible, format_count

PROGRESS_INTERVAL_S = 5.0
STATUS_WIDTH = 8
MAX_SKIPPED_LINES = 3
#: maximum total size of two texts to compare line by line, which takes quadratic time
MAX_COMPARED_CHARS = 200_000
#: module that reports the memory budget of a start
BUDGET_MODULE = "assert_memory_fits"
#: module that waits for a new server; if it did not run, no server was started, and the stages are not reported
LOAD_MODULE = "wait_ready"
MIN_STAGE_S = 0.05
#: events that do not end a sequence of skipped tasks
SILENT_EVENTS = ("task_started", "recap", "rolled")

#: rows of the summary of a rolling run, as (title, key in the event, style)
ROLLOUT_ROWS = (
    ("done", "done", "ok"),
    ("already done", "earlier", "ok"),
    ("failed", "failed", "failed"),
    ("inconclusive", "inconclusive", "changed"),
    ("unreachable", "unreachable", "failed"),
    ("not started", "not_begun", "changed"),
)


class Presenter:
    """Base of the subscribers that print a run for a person. Each event is passed to the method `_on_KIND`, if there is one.

    Args:
        write: called with the style and the text of a line.
    """

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self.write = write
        self._announced_sandboxes: set[str] = set()
        self._rollout_event: Event | None = None

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the run."""

    def on(self, event: Event) -> None:
        handle = getattr(self, f"_on_{event['event']}", None)
        if handle is not None:
            handle(event)

    def pause(self) -> None:
        """Remove the live part of the output, if there is one, for a question."""

    def resume(self) -> None:
        """Show the live part again."""

    def close(self) -> None:
        """Print the end of the output."""
        for style, text in rollout_summary(self._rollout_event) if self._rollout_event else ():
            self.write(style, text)

    def _on_looking(self, event: Event) -> None:
        self.write("muted", f"checking {count_hosts(event['hosts'])} before changing any")

    def _on_batch_started(self, event: Event) -> None:
        kind = "canary" if event["canary"] else f"batch {event['n']}"
        remaining_clause = f", {event['left']} left" if event["left"] else ""
        self.write("title", f"{kind}: {formatters.join_names(event['hosts'])}{remaining_clause}")

    def _on_rolled(self, event: Event) -> None:
        self._rollout_event = event

    def _sandbox_notice(self, event: Event) -> str:
        """Return the notice that a host is a sandbox at the start of its first run; otherwise an empty string."""
        if not event.get("sandbox") or event["host"] in self._announced_sandboxes:
            return ""
        self._announced_sandboxes.add(event["host"])
        return formatters.sandbox_notice(event["host"])


class TaskLines(Presenter):
    """Prints one line of plain text per task and host.

    Args:
        diff: show the differences, field by field.
        write: called with the style of the first word and the finished line.
    """

    def __init__(self, *, diff: bool = False, write: Callable[[str, str], None] | None = None) -> None:
        super().__init__(write or print_plain)
        self.diff = diff
        self._progress_times_s: dict[str, float] = {}
        self._task_names: dict[tuple[str, str], str] = {}
        self._skipped_names: dict[str, list[str]] = {}
        self._failure_messages: dict[str, set[str]] = {}
        self._stages: dict[str, dict[str, float]] = {}  # seconds by stage, by host
        self._loaded_hosts: set[str] = set()
        self._host_width = 0
        self._has_many_hosts = False
        self._recaps: list[Event] = []

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the run. Lines name the host only if there are several."""
        self._has_many_hosts = len(names) > 1
        self._host_width = max(map(len, names), default=0)

    def on(self, event: Event) -> None:
        is_shown = hasattr(self, f"_on_{event['event']}")
        if is_shown and event["event"] not in SILENT_EVENTS and not _is_skip(event):
            self._print_skipped(event["host"])
        super().on(event)

    def close(self) -> None:
        for host in list(self._skipped_names):
            self._print_skipped(host)
        if self._recaps:
            self.write("", "")
            first_hosts: dict[str, str] = {}
            for recap in sorted(self._recaps, key=lambda row: str(row["host"])):
                self._print_recap(recap, first_hosts)
        if self._rollout_event is not None:
            self.write("", "")
        super().close()

    def _on_play_started(self, event: Event) -> None:
        self.write("title", f"PLAY [{event['play']}] {', '.join(event['hosts'])}")

    def _on_run_started(self, event: Event) -> None:
        if notice := self._sandbox_notice(event):
            self.write("muted", notice)
        if event.get("check"):
            self.write("muted", f"check mode: no changes on {event['host']}.")

    def _on_task_started(self, event: Event) -> None:
        self._task_names[event["host"], event["task"]] = event["name"]

    def _on_progress(self, event: Event) -> None:
        host, time_s = event["host"], event["time"]
        if time_s - self._progress_times_s.setdefault(host, time_s) < PROGRESS_INTERVAL_S:
            return
        self._progress_times_s[host] = time_s
        progress = formatters.format_progress(event["done"], event["total"], event["unit"])
        self.write("muted", self._line("...", host, f"{progress}  {event['text']}".rstrip()))

    def _on_note(self, event: Event) -> None:
        self.write("muted", self._line("", event["host"], event["text"]))

    def _on_run(self, event: Event) -> None:
        self.write("", self._line("", event["host"], formatters.format_run(event)))

    _on_raw = _on_note

    def _on_task_finished(self, event: Event) -> None:
        self._progress_times_s.pop(event["host"], None)
        self._add_to_stage(event)
        if _is_skip(event):
            self._skipped_names.setdefault(event["host"], []).append(event["name"])
            return
        duration = f"  ({units.format_duration(event['seconds'])})" if event["seconds"] >= 2 else ""
        message = f"  {self._unprinted_message(event)}" if event["msg"] and event["status"] != "skipped" else ""
        status = "later" if event["status"] == "skipped" else event["status"]
        self.write(status, self._line(status, event["host"], f"{event['name']}{duration}{message}"))
        if event["status"] in ("failed", "ignored"):
            for style, text in failure_lines(event, " " * (STATUS_WIDTH + 1)):
                self.write(style, text)
            reported_messages = {event["msg"], f"{event['msg']} {event.get('fix') or ''}".strip()}
            self._failure_messages.setdefault(event["host"], set()).update(reported_messages)
        elif event["module"] == BUDGET_MODULE:
            for text in budget_lines((event.get("data") or {}).get("budget")):
                self.write("muted", f"{' ' * (STATUS_WIDTH + 1)}{text}")
        if self.diff:
            self._print_diff(event)

    def _add_to_stage(self, event: Event) -> None:
        if event.get("stage") and event["status"] != "skipped":
            stages = self._stages.setdefault(event["host"], {})
            stages[event["stage"]] = stages.get(event["stage"], 0.0) + event["seconds"]
            self._loaded_hosts |= {event["host"]} if event["module"] == LOAD_MODULE else set()

    def _unprinted_message(self, event: Event) -> str:
        """Return a task's message without a leading failure message that has already been printed, as in a rescue."""
        message: str = event["msg"]
        failures = self._failure_messages.get(event["host"], ())
        printed_chars = max(
            (len(failure) for failure in failures if failure and message.startswith(f"{failure} ")), default=0
        )
        return message[printed_chars:].strip()

    def _on_recap(self, event: Event) -> None:
        self._recaps.append(event)

    def _print_skipped(self, host: str) -> None:
        """Print consecutive skipped tasks, one line each, or a single line if there are many."""
        names = self._skipped_names.pop(host, [])
        if len(names) > MAX_SKIPPED_LINES:
            names = [f"{len(names)} tasks: {names[0]} ... {names[-1]}"]
        for name in names:
            self.write("skipped", self._line("skipped", host, name))

    def _line(self, status: str, host: str, text: str) -> str:
        host_column = f"{host:<{self._host_width}}  " if self._has_many_hosts else ""
        prefix = f"{status:<{STATUS_WIDTH}} {host_column}"
        return prefix + text.replace("\n", "\n" + " " * len(prefix))  # indents continuation lines

    def _print_diff(self, event: Event) -> None:
        indent = " " * (STATUS_WIDTH + 1)
        for change in event.get("diff", ()):
            comment = f"   # {change['why']}" if change.get("why") else ""
            for field, old_value, new_value in changed_fields(change):
                for prefix, row in changed_rows(old_value, new_value):
                    style = {"-": "removed", "+": "added"}.get(prefix, "muted")
                    self.write(style, f"{indent}{prefix} {field}: {row}{comment if prefix == '+' else ''}")

    def _print_recap(self, recap: Event, first_hosts: dict[str, str]) -> None:
        """Print a host's recap. first_hosts: the first host with each message, to which later hosts refer."""
        style = "failed" if recap["failed"] or recap["unreachable"] else "changed" if recap["changed"] else "ok"
        self.write(
            style,
            f"{recap['host']:<{self._host_width}} : {format_recap(recap)}  in {units.format_duration(recap['seconds'])}",
        )
        if recap["host"] in self._loaded_hosts:
            stages = self._stages[recap["host"]].items()
            text = ", ".join(
                f"{name} {units.format_duration(seconds)}" for name, seconds in stages if seconds >= MIN_STAGE_S
            )
            self.write("muted", f"  stages: {text}")
        message = recap.get("msg")
        if message and message not in self._failure_messages.get(recap["host"], ()):  # not printed with the failed task
            first_host = first_hosts.setdefault(message, recap["host"])
            text = message if first_host == recap["host"] else formatters.same_reason(first_host)
            self.write("fix", "  " + text.replace("\n", "\n  "))


def _is_skip(event: Event) -> bool:
    """Return True for a skipped task, unless check mode skipped it and its result is unknown."""
    is_skipped = event["event"] == "task_finished" and event["status"] == "skipped"
    return is_skipped and not event["msg"].startswith(KNOWN_AFTER_PREFIX)


def failure_lines(event: Event, indent: str) -> Iterator[tuple[str, str]]:
    """Yield the style and text of the lines that explain a failed task: fix, evidence, location."""
    if event.get("fix"):
        yield "fix", f"{indent}→ {event['fix']}"
    rows = event.get("data", {}).get("evidence", ())
    for row in rows if isinstance(rows, list | tuple) else ():
        yield "muted", f"{indent}| {row}".replace("\n", f"\n{indent}| ")
    if event.get("where"):
        yield "muted", f"{indent}at {event['where']}"


def budget_lines(data: Any) -> list[str]:
    """Return the table of a memory budget, parsed from a host's JSON, as lines; empty if the JSON is invalid."""
    try:
        return Budget.of_json(data).lines()
    except ValueError:
        return []


def changed_fields(change: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield a changed field with its old and new value; for a mapping, yield each key that differs."""
    field, old_value, new_value = change["field"], change["before"], change["after"]
    if not (isinstance(old_value, dict) and isinstance(new_value, dict)):
        yield field, old_value, new_value
        return
    for key in dict.fromkeys((*old_value, *new_value)):
        if old_value.get(key) != new_value.get(key):
            yield f"{field}.{key}", old_value.get(key), new_value.get(key)


def changed_rows(old_value: Any, new_value: Any) -> list[tuple[str, str]]:
    """Return the removed and added lines with their prefixes; for multi-line texts, the changes and one line of context."""
    are_texts = isinstance(old_value, str) and isinstance(new_value, str)
    if are_texts and "\n" in old_value + new_value and len(old_value) + len(new_value) <= MAX_COMPARED_CHARS:
        diff_lines = list(difflib.unified_diff(old_value.splitlines(), new_value.splitlines(), n=1, lineterm=""))[2:]
        return [(row[0], row[1:]) for row in diff_lines if not row.startswith("@@")]
    sides = (("-", old_value), ("+", new_value))
    return [(prefix, row) for prefix, value in sides if value is not None for row in _value_lines(value)]


def _value_lines(value: Any) -> list[str]:
    """Return a value as lines of text. A single line is truncated on a terminal, but not in a pipe."""
    text = value if isinstance(value, str) and len(value) <= MAX_COMPARED_CHARS else ""
    if "\n" in text:
        return text.splitlines()
    full_line = formatters.format_value(value)
    return [
        full_line
        if terminal_width() is None and len(full_line) <= MAX_COMPARED_CHARS
        else formatters.truncate_value(value)
    ]


def print_plain(style: str, text: str) -> None:
    """Print a line to stdout."""
    del style
    sys.stdout.write(escape_invisible(text).rstrip() + "\n")
    sys.stdout.flush()


def count_hosts(names: Collection[str]) -> str:
    """Return the number of hosts as text, or the number of servers if a host has several."""
    return format_count(len(names), "server" if any("/" in name for name in names) else "host")


def rollout_summary(event: Event) -> list[tuple[str, str]]:
    """Return the style and text of each line: the reason for a stop, finished and unfinished hosts, and how to resume."""
    lines = [("failed", f"{event['playbook']} stopped: {event['why']}.")] if event["why"] else []
    lines += [
        (style, f"  {name:<12} {formatters.join_names(event[key], 40)}")
        for name, key, style in ROLLOUT_ROWS
        if event[key]
    ]
    if event["resume"]:
        lines.append(("fix", f"  → `{event['resume']}` continues with the rest."))
    return lines
