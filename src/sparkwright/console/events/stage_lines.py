"""Terminal output of a run: a line per stage with its results and changes, and at the end the explanation of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from sparkwright import units
from sparkwright.console import formatters
from sparkwright.console.command_output import wrap_sentence
from sparkwright.console.events.lines import Presenter
from sparkwright.console.events.live_lines import STYLES, print_line
from sparkwright.console.terminal import build_console
from sparkwright.program import rewrite_commands
from sparkwright.protocol.events import KNOWN_AFTER_PREFIX, Event, format_recap
from sparkwright.visible import escape_invisible, format_count

REFRESHES_PER_SECOND = 4
BAR_WIDTH = 16
#: widths of the columns for a stage's name and duration, in characters
STAGE_WIDTH, TIME_WIDTH = 8, 6
#: minimum width for a stage's results, in characters; a narrower terminal wraps the lines itself
MIN_RESULTS_WIDTH = 24
#: maximum number of terminal lines for a failure's evidence, so that the stages above it stay on the screen
MAX_EVIDENCE_LINES = 10
#: the same for the table of a memory budget, whose first lines matter as much as its last
MAX_BUDGET_LINES = 40
#: width of the terminal for which those lines are counted
EVIDENCE_LINE_WIDTH = 74
#: maximum length of one line of evidence
MAX_EVIDENCE_CHARS = 240
#: module that saves the diagnostics of a failed server
INCIDENT_MODULE = "incident"
#: module that a rescue uses to report the failure and how it was handled
REPORT_MODULE = "fail"
#: verdicts of checks that were not requested
UNREQUESTED_VERDICTS = ("off", "not asked for")
#: a stage without results or changes is printed only if it took at least this many seconds
MIN_SLOW_STAGE_S = 2.0
MARKS = {"ok": "✓", "changed": "✓", "failed": "✗", "unfinished": "…"}


@dataclass
class Stage:
    """A stage of one host's run."""

    name: str
    #: monotonic seconds
    began_s: float
    seconds: float = 0.0
    #: (style, text) of each result, change and note
    facts: list[tuple[str, str]] = field(default_factory=list)
    #: number of finished tasks
    finished_count: int = 0
    outcome: str = "ok"


@dataclass
class HostRun:
    """The state of one host's run, gathered from its events."""

    stage: Stage | None = None
    #: name of the running task; empty if there is none
    task: str = ""
    #: start of the task, in monotonic seconds
    task_began_s: float = 0.0
    #: last progress of the task
    progress: Event | None = None
    failures: list[Event] = field(default_factory=list)
    #: True if the diagnostics of a failed server were saved
    has_incident: bool = False


class StageLines(Presenter):
    """Prints a line for each stage, and a live line for each running host below them.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or build_console()
        super().__init__(partial(print_line, self._console))
        self._clock = clock
        self._runs: dict[str, HostRun] = {}
        self._play = self._title = ""
        self._host_width = 0
        self._recaps: list[Event] = []
        self._is_paused = False
        self._live = Live(
            get_renderable=self._status_lines,
            console=self._console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )
        self._live.start()

    def set_hosts(self, names: list[str]) -> None:
        """Set the hosts of the run. Lines name the host only if there are several."""
        self._host_width = max(map(len, names)) if len(names) > 1 else 0

    def on(self, event: Event) -> None:
        if event["event"] not in ("play_started", "run_started"):
            self._print_title("")
        super().on(event)

    def pause(self) -> None:
        self._is_paused = True
        self._live.stop()

    def resume(self) -> None:
        self._is_paused = False
        self._live.start()

    def close(self) -> None:
        for host, run in self._runs.items():
            if run.stage is not None and run.task:
                run.stage.outcome, run.stage.seconds = "unfinished", self._clock() - run.stage.began_s
                run.stage.facts.append(("muted", run.task))
            self._end_stage(host)
        self._live.stop()
        for recap in sorted(self._recaps, key=lambda row: str(row["host"])):
            self._print_recap(recap)
        super().close()

    # -- events --------------------------------------------------------------------------------------------------

    def _on_play_started(self, event: Event) -> None:
        for host in self._runs:
            self._end_stage(host)
        self._print_title("")
        self._play = event["play"]
        self._title = f"PLAY [{event['play']}] {formatters.join_names(event['hosts'])}"

    def _on_run_started(self, event: Event) -> None:
        host, notice = event["host"], self._sandbox_notice(event)
        if notice and self._title.endswith(f" {host}"):
            self._print_title(f": {formatters.SANDBOX_DESCRIPTION}")
        else:
            self._print_title("")
            if notice:
                self.write("muted", notice)
        if event.get("check"):
            self.write("muted", f"check mode: no changes on {host}.")

    def _on_task_started(self, event: Event) -> None:
        run = self._find_run(event)
        name = event.get("stage") or (run.stage.name if run.stage else self._play.lower() or "run")
        if run.stage is None or run.stage.name != name:
            self._end_stage(event["host"])
            run.stage = Stage(name, self._clock())
        run.task, run.task_began_s, run.progress = event["name"], self._clock(), None

    def _on_progress(self, event: Event) -> None:
        self._find_run(event).progress = event

    def _on_note(self, event: Event) -> None:
        run = self._find_run(event)
        if event.get("detail"):
            return
        if event.get("task") and run.stage is not None:
            run.stage.facts.append(("muted", event["text"]))
            return
        self._end_stage(event["host"])
        self._on_raw(event)

    def _on_raw(self, event: Event) -> None:
        self._print_line(event["host"], "muted", event["text"])

    def _on_run(self, event: Event) -> None:
        self._print_line(event["host"], "", formatters.format_run(event))

    def _on_task_finished(self, event: Event) -> None:
        run = self._find_run(event)
        run.task, run.progress = "", None
        if event["status"] == "skipped" and not event["msg"].startswith(KNOWN_AFTER_PREFIX):
            return
        if run.stage is None:  # the result of a block that could not start
            run.stage = Stage(event.get("stage") or self._play.lower() or "run", self._clock())
        stage = run.stage
        stage.finished_count += 1
        stage.seconds += event["seconds"]
        run.has_incident |= event["module"] == INCIDENT_MODULE and event["status"] in ("ok", "changed")
        if event["status"] == "failed":
            is_repeated = event["module"] == REPORT_MODULE and any(
                failure["msg"] and event["msg"].startswith(failure["msg"]) for failure in run.failures
            )
            run.failures.append(event)
            if is_repeated:  # a rescue's report, which is also in the recap
                return
            stage.outcome = "failed"
        stage.facts += _task_facts(event)
        if event["status"] == "changed" and stage.outcome == "ok":
            stage.outcome = "changed"

    def _on_waiting(self, event: Event) -> None:
        self._end_stage(event["host"])

    _on_host_finished = _on_waiting

    def _on_recap(self, event: Event) -> None:
        self._end_stage(event["host"])
        self._recaps.append(event)

    # -- lines ---------------------------------------------------------------------------------------------------

    def _find_run(self, event: Event) -> HostRun:
        return self._runs.setdefault(event["host"], HostRun())

    def _print_title(self, suffix: str) -> None:
        title, self._title = self._title, ""
        if title:
            self.write("title", title + suffix)

    def _end_stage(self, host: str) -> None:
        """Print the line of a host's current stage, if there is one."""
        run = self._runs.get(host, HostRun())
        stage, run.stage, run.progress = run.stage, None, None
        task, run.task = run.task, ""
        if stage is None or not (stage.facts or task or stage.seconds >= MIN_SLOW_STAGE_S):
            return
        for line in self._format_stage(host, stage, MARKS[stage.outcome], stage.seconds):
            self._console.print(line, soft_wrap=True)

    def _format_stage(self, host: str, stage: Stage, mark: str, seconds: float) -> Iterator[Text]:
        """Yield the lines of a stage: its name and duration, followed by its results and changes."""
        facts = list(dict.fromkeys(stage.facts)) or [
            ("muted", f"{format_count(stage.finished_count, 'task')}, nothing to change")
        ]
        prefix = f"{mark} {self._format_host(host)}{stage.name:<{STAGE_WIDTH}} {units.format_duration(seconds):>{TIME_WIDTH}}  "
        indent = 2 + len(self._format_host("")) + STAGE_WIDTH + 1 + TIME_WIDTH + 2
        style = STYLES["failed" if stage.outcome == "failed" else "ok"]
        for n, line in enumerate(_flow_facts(facts, max(MIN_RESULTS_WIDTH, self._console.width - indent))):
            head = Text(" " * indent) if n else Text(escape_invisible(prefix))
            if n == 0:
                head.stylize(style, 0, 1)
            yield Text.assemble(head, *line)

    def _print_line(self, host: str, style: str, text: str) -> None:
        prefix = f"  {self._format_host(host)}"
        max_width = max(MIN_RESULTS_WIDTH, self._console.width - len(prefix))
        for n, line in enumerate(wrap_sentence(escape_invisible(text), max_width)):
            self._console.print(
                Text(f"{prefix if n == 0 else ' ' * len(prefix)}{line}", style=STYLES.get(style, "")), soft_wrap=True
            )

    def _format_host(self, host: str) -> str:
        return f"{host:<{self._host_width}}  " if self._host_width else ""

    def _print_recap(self, recap: Event) -> None:
        style = "failed" if recap["failed"] or recap["unreachable"] else "changed" if recap["changed"] else "ok"
        text = (
            f"{recap['host']:<{self._host_width}} : {format_recap(recap)}  in {units.format_duration(recap['seconds'])}"
        )
        if style != "failed" and recap["exit"] in (0, 2):
            self.write(style, text)
            return
        self.write("", "")
        self.write(style, text)
        run = self._runs.get(recap["host"], HostRun())
        for line_style, line in _explain_failure(run, recap.get("msg") or "", recap["host"]):
            self.write(line_style, line)

    def _status_lines(self) -> Group:
        """Return a line for each running host; if there is only one, also the results of its stage so far."""
        lines: list[Text] = []
        for host, run in () if self._is_paused else self._runs.items():
            if run.stage is not None and run.task:
                elapsed_s = self._clock() - run.stage.began_s
                lines += (
                    self._format_stage(host, run.stage, " ", elapsed_s)
                    if run.stage.facts and not self._host_width
                    else ()
                )
                lines.append(self._format_running_line(host, run))
        return Group(*lines)

    def _format_running_line(self, host: str, run: HostRun) -> Text:
        assert run.stage is not None
        shown_above = run.stage.facts and not self._host_width
        duration = units.format_duration(self._clock() - (run.task_began_s if shown_above else run.stage.began_s))
        name = "" if shown_above else run.stage.name
        text = Text(f"  {self._format_host(host)}{name:<{STAGE_WIDTH}} {duration:>{TIME_WIDTH}}  ", no_wrap=True)
        text.append(f"{escape_invisible(run.task)}  ")
        progress = run.progress
        if progress is not None:
            if progress["total"]:
                done_width = min(BAR_WIDTH, int(BAR_WIDTH * progress["done"] / progress["total"]))
                text.append("━" * done_width, STYLES["ok"]).append("━" * (BAR_WIDTH - done_width), "dim").append("  ")
            text.append(_format_progress(progress, self._clock() - run.task_began_s), "dim")
        text.truncate(self._console.width, overflow="ellipsis")
        return text


def _format_progress(progress: Event, seconds: float) -> str:
    """Return the progress of a task as text, with its speed."""
    amount = (
        formatters.format_progress(progress["done"], progress["total"], progress["unit"])
        if progress["done"] or progress["total"]
        else ""
    )
    if progress["unit"] == "bytes" and seconds >= 1:
        amount += f", {units.format_rate(progress['done'] / seconds)}"
    return "  ".join(part for part in (amount, escape_invisible(formatters.truncate_value(progress["text"]))) if part)


def _task_facts(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the style and text that a finished task adds to its stage's line."""
    status, msg, name = event["status"], event["msg"], event["name"]
    if status == "skipped":
        yield "later", f"{name}: {msg}"
    elif status in ("failed", "ignored"):
        yield status, f"{name}: {formatters.truncate_value(msg, 160)}" if msg else name
    elif event.get("proof") and msg:
        if (event.get("data") or {}).get("verdict") not in UNREQUESTED_VERDICTS:
            yield "", formatters.format_value(msg)
    elif status == "changed":
        yield "", formatters.format_value(f"{name}: {msg}" if msg else name)


def _flow_facts(facts: list[tuple[str, str]], max_width: int) -> Iterator[list[tuple[str, str]]]:
    """Yield lines of facts, each as (text, style) parts. A fact that fits completely is appended to the current line."""
    line: list[tuple[str, str]] = []
    for style, text in facts:
        used_width = sum(len(part) for part, _ in line)
        wrapped_lines = wrap_sentence(escape_invisible(text), max_width)
        if line and len(wrapped_lines) == 1 and used_width + 2 + len(wrapped_lines[0]) <= max_width:
            line += [("; ", ""), (wrapped_lines[0], STYLES.get(style, ""))]
            continue
        if line:
            yield line
        for full_line in wrapped_lines[:-1]:
            yield [(full_line, STYLES.get(style, ""))]
        line = [(wrapped_lines[-1], STYLES.get(style, ""))]
    yield line


def _explain_failure(run: HostRun, outcome: str, host: str) -> Iterator[tuple[str, str]]:
    """Yield the style and text of a failure's lines: the task with the reason, the evidence, the outcome, and the fix.

    outcome: the recap's message, which begins with the message of the decisive failure.
    """
    failures = run.failures
    if not failures:
        if outcome:
            yield "fix", f"  {outcome}"
        return
    candidates = [failure for failure in failures[:-1] if failure["msg"] and outcome.startswith(failure["msg"])]
    root_failure = max(candidates, key=lambda failure: len(failure["msg"]), default=failures[0])
    yield "failed", f"failed   {root_failure['name']}: {root_failure['msg']}"
    yield from _evidence_lines(root_failure, host)
    fixes = list(dict.fromkeys(event["fix"] for event in (root_failure, failures[-1]) if event.get("fix")))
    consequence = outcome.removeprefix(root_failure["msg"]).strip()
    for fix in fixes:
        consequence = consequence.removesuffix(fix).removeprefix(fix).strip()
    if consequence:
        yield "title", f"outcome  {consequence}"
    if run.has_incident and not fixes:
        fixes = [rewrite_commands(f"`invoke incident --host {host}` downloads the diagnostics of the failed server.")]
    yield from (("fix", f"→ {fix}") for fix in fixes)


def _evidence_lines(root_failure: Event, host: str) -> Iterator[tuple[str, str]]:
    """Yield the style and text of the last lines of a failure's evidence, and of its location in the playbook."""
    data = root_failure.get("data") or {}
    rows, max_lines = data.get("evidence", ()), MAX_BUDGET_LINES if data.get("budget") else MAX_EVIDENCE_LINES
    lines = [line for row in (rows if isinstance(rows, list | tuple) else ()) for line in str(row).splitlines()]
    last_lines: list[str] = []
    for line in reversed(lines):
        last_lines.insert(0, formatters.truncate_value(line, MAX_EVIDENCE_CHARS))
        if sum(1 + len(last_line) // EVIDENCE_LINE_WIDTH for last_line in last_lines) >= max_lines:
            break
    if len(lines) > len(last_lines):
        text = rewrite_commands(f"`invoke attach --host {host}` shows all of it")
        yield "muted", f"  | {format_count(len(lines) - len(last_lines), 'more line')}: {text}"
    yield from (("muted", f"  | {line}") for line in last_lines)
    if root_failure.get("where"):
        yield "muted", f"  at {root_failure['where']}"
