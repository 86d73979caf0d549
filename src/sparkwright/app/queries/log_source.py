"""The `logs` command: read a saved log or the logs of containers, and print their text or the engine's state."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.app.connect import connect_hosts
from sparkwright.app.plans import recipes
from sparkwright.app.queries.host_requests import query_module
from sparkwright.console.command_output import error_row, print_json_line, print_prose, print_text, terminal_width
from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.log.log_format import LogFormat
from sparkwright.engines.log.reader import read_log, strip_prefix
from sparkwright.engines.log.state import FIELDS, EngineState
from sparkwright.engines.log.text import iter_lines, strip_terminal_codes
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.project.inventory.host import Host
from sparkwright.visible import escape_invisible

#: number of lines at the start of a saved log that are searched for an engine's start
MAX_SEARCHED_LINES = 2000
#: maximum width of the value column; the evidence of a longer value is moved to the right
MAX_VALUE_COLUMNS = 28
#: minimum width of the evidence column; without that space the evidence is omitted
MIN_EVIDENCE_COLUMNS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLog:
    """An engine's log, and the state of the engine that it shows."""

    #: {"host": NAME} or {"file": PATH}
    source: Mapping[str, str]
    #: an `EngineState` as JSON
    state: Mapping[str, Any]
    #: the engine that wrote the log
    engine: Engine
    text: str = ""
    #: True if the log contains an engine's start
    known: bool = True
    #: reason why the log could not be read
    error: str = ""
    error_exit: Exit = Exit.OK
    #: title of the host, or path of the file
    title: str = ""

    @property
    def exit(self) -> Exit:
        """The exit code of `logs` for this log."""
        if self.error:
            return self.error_exit
        if self.state["failure"]:
            return Exit.FAILED
        return Exit.OK if self.known else Exit.INCONCLUSIVE


def read_file(name: str, tail: int, engine_name: str = "") -> list[EngineLog]:
    """Read a saved log. Raises Refused if it can't be read, or for an unknown engine.

    Args:
        tail: number of lines to return from the end.
        engine_name: name of the engine that wrote the log; empty to recognize it by the first lines.
    """
    try:
        with Path(name).open("rb") as log_file:
            log_engine = (
                _get_engine(engine_name)
                if engine_name
                else recognize_engine(itertools.islice(log_file, MAX_SEARCHED_LINES))
            )
            log_file.seek(0)
            state = read_log(log_file, log_engine.log)
            log_file.seek(0)
            lines: deque[bytes] = deque(log_file, maxlen=tail)
    except OSError as error:
        raise Refused(f"can't be read: {error.strerror}.", where=name) from None
    text = escape_invisible(strip_terminal_codes(b"".join(lines).decode(errors="replace")))
    return [EngineLog({"file": name}, state.to_json(), log_engine, text, known=state.known, title=name)]


def recognize_engine(lines: Iterable[bytes]) -> Engine:
    """Return the engine whose start line comes first, or the default engine if there is none."""
    for line in iter_lines(lines):
        for engine in map(engines.get_engine, engines.TITLES):
            if engine.log.is_start_line(line):
                return engine
    return engines.get_engine(engines.DEFAULT_ENGINE)


def _get_engine(name: str) -> Engine:
    if name not in engines.TITLES:
        raise Refused(f"unknown engine {name!r}; the engines are {', '.join(engines.TITLES)}.", where="--engine")
    return engines.get_engine(name)


def query_hosts(pattern: str, tail: int) -> list[EngineLog]:
    """Return the engine's log on each host that matches a pattern, with its last `tail` lines."""
    selection = connect_hosts(pattern)

    def query_log(member: Member) -> Mapping[str, Any]:
        container = recipes.load_host_recipe(selection.project, member.host).file.container
        return query_module(selection.fleet, member, "engine_log", {"name": container.name, "tail": tail})

    answers = selection.fleet.query_all(query_log)
    errors = selection.fleet.errors()

    def build_log(host: Host) -> EngineLog:
        source = {"host": host.name}
        if error := errors.get(host.name):
            engine = engines.get_engine(engines.DEFAULT_ENGINE)
            state = EngineState().to_json()
            return EngineLog(source, state, engine, error=error.message, error_exit=error.exit, title=host.title)
        answer = answers[host.name]
        engine = engines.get_engine(answer["engine"])
        return EngineLog(source, answer["state"], engine, answer["text"], known=answer["known"], title=host.title)

    return [build_log(host) for host in selection.hosts]


def print_log(log: EngineLog, *, show_state: bool, json: bool, with_title: bool) -> None:
    """Print the text of a log, or the engine's state.

    Args:
        show_state: print the engine's state.
        with_title: print the name of the host or file above it.
    """
    if json:
        body = log.state if show_state else {"text": log.text}
        print_json_line({**log.source, **body, **(error_row(log.error, log.error_exit) if log.error else {})})
    elif log.error:
        names_host = log.error.startswith(f"{log.source.get('host')}: ")
        print_prose(log.error if names_host else f"{log.title}: {log.error}", file=sys.stderr)
    else:
        lines = [f"{log.title}:"] if with_title else []
        if show_state:
            lines += format_state(log.state, log.engine.log, terminal_width())
        elif log.text:
            lines.append(log.text.removesuffix("\n"))
        print_text("\n".join(lines))


def format_state(state: Mapping[str, Any], log_format: LogFormat, columns: int | None) -> list[str]:
    """Return the lines of a table with an engine's state.

    Args:
        state: an `EngineState` as JSON.
        columns: width of the terminal, to which evidence, but not values, is cut; None without a terminal.
    """
    names = [name for name in (*FIELDS, *log_format.extra_readings) if name in state]
    rows = [
        (name, _format_value(state[name]), strip_prefix(state["evidence"].get(name, ""), log_format)) for name in names
    ]
    rows += [(f"stage {name}", f"{seconds:g} s", "") for name, seconds in state["stage_s"].items()]
    rows += [("warning", "", strip_prefix(text, log_format)) for text in state["warnings"]]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= MAX_VALUE_COLUMNS)
    return [
        _format_state_row(f"{name:<{name_width}}  {value:<{value_width}}", evidence, columns)
        for name, value, evidence in rows
    ]


def _format_state_row(prefix: str, evidence: str, columns: int | None) -> str:
    if columns is None:
        return f"{prefix}  {evidence}".rstrip()
    max_chars = columns - len(prefix) - 2
    if not evidence or max_chars < MIN_EVIDENCE_COLUMNS:
        return prefix.rstrip()
    return f"{prefix}  {_shorten_evidence(evidence, max_chars)}"


def _shorten_evidence(evidence: str, max_chars: int) -> str:
    """Cut the evidence. If it ends with an excerpt of a long log line, keep the excerpt, because it contains the value."""
    if len(evidence) <= max_chars:
        return evidence
    head, separator, excerpt = evidence.partition(" ... ")
    if separator and len(excerpt) + 2 < max_chars:
        return f"{head[: max_chars - len(excerpt) - 2]}… {excerpt}"
    return evidence[: max_chars - 1] + "…"


def _format_value(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
