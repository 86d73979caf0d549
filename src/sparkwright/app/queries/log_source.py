"""The `logs` command: read a saved log or a container's log on a host, and print it or the engine's state."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLog:
    """A log and the engine state that it shows."""

    #: {"host": NAME} or {"file": PATH}
    source: Mapping[str, str]
    #: an `EngineState` as JSON
    state: Mapping[str, Any]
    #: the engine that wrote the log
    engine: Engine
    text: str = ""
    #: True if the log contains an engine's start
    known: bool = True
    #: reason why there is no log
    error: str = ""
    error_exit: Exit = Exit.OK
    #: title of the host
    title: str = ""

    @property
    def exit(self) -> Exit:
        """The exit code of a command about this log."""
        if self.error:
            return self.error_exit
        if self.state["failure"]:
            return Exit.FAILED
        return Exit.OK if self.known else Exit.INCONCLUSIVE


def read_file(name: str, tail: int, engine: str = "") -> list[EngineLog]:
    """Read a saved log. Raises Refused if it can't be read, or for an unknown engine.

    Args:
        tail: number of lines to return from the end.
        engine: name of the engine that wrote the log; empty to recognise it from the first lines.
    """
    try:
        with Path(name).open("rb") as saved:
            writer = _get_engine(engine) if engine else recognise_engine(itertools.islice(saved, MAX_SEARCHED_LINES))
            saved.seek(0)
            state = read_log(saved, writer.log)
            saved.seek(0)
            lines: deque[bytes] = deque(saved, maxlen=tail)
    except OSError as error:
        raise Refused(f"can't be read: {error.strerror}.", where=name) from None
    text = escape_invisible(strip_terminal_codes(b"".join(lines).decode(errors="replace")))
    return [EngineLog({"file": name}, state.to_json(), writer, text, known=state.known)]


def recognise_engine(lines: Iterable[bytes]) -> Engine:
    """Return the engine whose start one of these lines shows, or else the usual engine."""
    for line in iter_lines(lines):
        for engine in map(engines.get_engine, engines.TITLES):
            if engine.log.is_start_line(line):
                return engine
    return engines.get_engine(engines.DEFAULT_ENGINE)


def _get_engine(name: str) -> Engine:
    if name not in engines.TITLES:
        raise Refused(f"there is no engine {name!r}; there are {', '.join(engines.TITLES)}.", where="--engine")
    return engines.get_engine(name)


def query_hosts(pattern: str, tail: int) -> list[EngineLog]:
    """Return the logs of the containers that the hosts' recipes name."""
    selection = connect_hosts(pattern)

    def log_of(member: Member) -> Mapping[str, Any]:
        container = recipes.load_host_recipe(selection.project, member.host).file.container
        return query_module(selection.fleet, member, "engine_log", {"name": container.name, "tail": tail})

    answers = selection.fleet.ask(log_of)
    empty_state, errors = EngineState().to_json(), selection.fleet.errors()

    def build_log(host: Host) -> EngineLog:
        source_fields: dict[str, Any] = {"source": {"host": host.name}, "title": host.title}
        if error := errors.get(host.name):
            usual_engine = engines.get_engine(engines.DEFAULT_ENGINE)
            return EngineLog(
                **source_fields, state=empty_state, engine=usual_engine, error=error.message, error_exit=error.exit
            )
        answer = answers[host.name]
        engine = engines.get_engine(answer["engine"])
        return EngineLog(
            **source_fields, state=answer["state"], engine=engine, text=answer["text"], known=answer["known"]
        )

    return [build_log(host) for host in selection.hosts]


def print_log(log: EngineLog, *, state: bool, json: bool, titled: bool) -> None:
    """Print one log, or its state.

    Args:
        titled: print the host's name above it.
    """
    if json:
        answer = error_row(log.error, log.error_exit) if log.error else {}
        body = log.state if state else {"text": log.text}
        print_json_line({**log.source, **body, **answer})
    elif log.error:
        print_prose(f"{log.title or ' '.join(log.source.values())}: {log.error}", file=sys.stderr)
    else:
        print_text("\n".join(_format_log(log, state=state, titled=titled)))


def _format_log(log: EngineLog, *, state: bool, titled: bool) -> Iterable[str]:
    if titled:
        yield f"{log.title or ' '.join(log.source.values())}:"
    if state:
        yield from format_state(log.state, log.engine.log, terminal_width())
    elif log.text:
        yield log.text.removesuffix("\n")


#: width of the value column; evidence moves right after a longer value
VALUE_COLUMNS = 28
MIN_EVIDENCE_COLUMNS = 10


def format_state(state: Mapping[str, Any], book: LogFormat, columns: int | None) -> list[str]:
    """Return the lines of a table with an engine's state.

    Args:
        state: an EngineState as JSON.
        book: the log book of its engine.
        columns: width of the terminal, to which evidence, but never a value, is cut; None without a terminal.
    """
    names = [name for name in (*FIELDS, *book.also) if name in state]
    rows = [(name, _format_value(state[name]), strip_prefix(state["evidence"].get(name, ""), book)) for name in names]
    rows += [(f"stage {name}", f"{seconds:g} s", "") for name, seconds in state["stage_s"].items()]
    rows += [("warning", "", strip_prefix(text, book)) for text in state["warnings"]]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows if len(value) <= VALUE_COLUMNS)
    return [
        _format_state_row(f"{name:<{name_width}}  {value:<{value_width}}", evidence, columns)
        for name, value, evidence in rows
    ]


def _format_state_row(start: str, evidence: str, columns: int | None) -> str:
    if columns is None:
        return f"{start}  {evidence}".rstrip()
    room = columns - len(start) - 2
    return (
        f"{start}  {_shorten_evidence(evidence, room)}" if evidence and room >= MIN_EVIDENCE_COLUMNS else start.rstrip()
    )


def _shorten_evidence(evidence: str, room: int) -> str:
    """Cut the evidence to the room. If it ends with an excerpt of a long line, keep that end, which holds the value."""
    if len(evidence) <= room:
        return evidence
    head, dots, excerpt = evidence.partition(" ... ")
    if dots and len(excerpt) + 2 < room:
        return f"{head[: room - len(excerpt) - 2]}… {excerpt}"
    return evidence[: room - 1] + "…"


def _format_value(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
