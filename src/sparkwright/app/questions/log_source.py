"""The `logs` command: read a saved log or a container's log on a host, and print it or the engine's state."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.app.connect import reach
from sparkwright.app.plans import recipes
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.console.out import error_row, say, say_json, say_prose, width
from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.reader import message, read
from sparkwright.engines.log.state import FIELDS, EngineState
from sparkwright.engines.log.text import lines_of, plain
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.project.inventory.host import Host
from sparkwright.visible import visible

#: number of lines at the start of a saved log that are searched for an engine's start
FIRST_LINES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
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


def of_file(name: str, tail: int, engine: str = "") -> list[Found]:
    """Read a saved log. Raises Refused if it can't be read, or for an unknown engine.

    Args:
        tail: number of lines to return from the end.
        engine: name of the engine that wrote the log; empty to recognise it from the first lines.
    """
    try:
        with Path(name).open("rb") as saved:
            writer = _named(engine) if engine else recognised(itertools.islice(saved, FIRST_LINES))
            saved.seek(0)
            state = read(saved, writer.log)
            saved.seek(0)
            lines: deque[bytes] = deque(saved, maxlen=tail)
    except OSError as error:
        raise Refused(f"can't be read: {error.strerror}.", where=name) from None
    text = visible(plain(b"".join(lines).decode(errors="replace")))
    return [Found({"file": name}, state.to_json(), writer, text, known=state.known)]


def recognised(lines: Iterable[bytes]) -> Engine:
    """Return the engine whose start one of these lines shows, or else the usual engine."""
    for line in lines_of(lines):
        for engine in map(engines.of, engines.TITLES):
            if engine.log.begins(line):
                return engine
    return engines.of(engines.USUAL)


def _named(name: str) -> Engine:
    if name not in engines.TITLES:
        raise Refused(f"there is no engine {name!r}; there are {', '.join(engines.TITLES)}.", where="--engine")
    return engines.of(name)


def of_hosts(pattern: str, tail: int) -> list[Found]:
    """Return the logs of the containers that the hosts' recipes name."""
    selection = reach(pattern)

    def log_of(member: Member) -> Mapping[str, Any]:
        container = recipes.recipe_of(selection.project, member.host).file.container
        return ask_module(selection.fleet, member, "engine_log", {"name": container.name, "tail": tail})

    answers = selection.fleet.ask(log_of)
    nothing, errors = EngineState().to_json(), selection.fleet.errors()

    def found(host: Host) -> Found:
        about: dict[str, Any] = {"source": {"host": host.name}, "title": host.title}
        if error := errors.get(host.name):
            usual = engines.of(engines.USUAL)
            return Found(**about, state=nothing, engine=usual, error=error.message, error_exit=error.exit)
        answer = answers[host.name]
        engine = engines.of(answer["engine"])
        return Found(**about, state=answer["state"], engine=engine, text=answer["text"], known=answer["known"])

    return [found(host) for host in selection.hosts]


def show(result: Found, *, state: bool, json: bool, titled: bool) -> None:
    """Print one log, or its state.

    Args:
        titled: print the host's name above it.
    """
    if json:
        answer = error_row(result.error, result.error_exit) if result.error else {}
        body = result.state if state else {"text": result.text}
        say_json({**result.source, **body, **answer})
    elif result.error:
        say_prose(f"{result.title or ' '.join(result.source.values())}: {result.error}", file=sys.stderr)
    else:
        say("\n".join(_lines(result, state=state, titled=titled)))


def _lines(result: Found, *, state: bool, titled: bool) -> Iterable[str]:
    if titled:
        yield f"{result.title or ' '.join(result.source.values())}:"
    if state:
        yield from state_lines(result.state, result.engine.log, width())
    elif result.text:
        yield result.text.removesuffix("\n")


#: width of the value column; evidence moves right after a longer value
VALUE_COLUMNS = 28
LEAST_EVIDENCE = 10


def state_lines(state: Mapping[str, Any], book: LogBook, columns: int | None) -> list[str]:
    """Return the lines of a table with an engine's state.

    Args:
        state: an EngineState as JSON.
        book: the log book of its engine.
        columns: width of the terminal, to which evidence, but never a value, is cut; None without a terminal.
    """
    names = [name for name in (*FIELDS, *book.also) if name in state]
    rows = [(name, _shown(state[name]), message(state["evidence"].get(name, ""), book)) for name in names]
    rows += [(f"stage {name}", f"{seconds:g} s", "") for name, seconds in state["stage_s"].items()]
    rows += [("warning", "", message(text, book)) for text in state["warnings"]]
    widest = max(len(name) for name, _, _ in rows)
    values = max(len(value) for _, value, _ in rows if len(value) <= VALUE_COLUMNS)
    return [_state_row(f"{name:<{widest}}  {value:<{values}}", evidence, columns) for name, value, evidence in rows]


def _state_row(start: str, evidence: str, columns: int | None) -> str:
    if columns is None:
        return f"{start}  {evidence}".rstrip()
    room = columns - len(start) - 2
    return f"{start}  {_cut(evidence, room)}" if evidence and room >= LEAST_EVIDENCE else start.rstrip()


def _cut(evidence: str, room: int) -> str:
    """Cut the evidence to the room. If it ends with an excerpt of a long line, keep that end, which holds the value."""
    if len(evidence) <= room:
        return evidence
    head, dots, excerpt = evidence.partition(" ... ")
    if dots and len(excerpt) + 2 < room:
        return f"{head[: room - len(excerpt) - 2]}… {excerpt}"
    return evidence[: room - 1] + "…"


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
