"""The `diagnose` command: query the hosts and lay out each diagnosis, without truncating anything at any width."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sparkwright.app.connect import Selection, choose
from sparkwright.app.questions import host_requests
from sparkwright.console import words
from sparkwright.console.events.live_lines import printed
from sparkwright.console.out import say_json
from sparkwright.console.rows import Cause, Diagnosis
from sparkwright.console.terminal import terminal
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.fixes import named
from sparkwright.fleet.member import Member, hang_up, question
from sparkwright.program import typed
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import recap_error
from sparkwright.visible import one_line

#: fields that a host reports; the laptop adds the name and any error
FIELDS = tuple(field.name for field in fields(Diagnosis) if field.name not in ("host", "error", "exit", "causes"))
CAUSE = tuple(field.name for field in fields(Cause))


def run(pattern: str, *, token_s: float, json: bool) -> list[int]:
    """Diagnose the hosts of a pattern, print the result, and return the exit codes."""
    if token_s < 0:
        raise Refused(f"--token-s must be at least 0, got {token_s:g}.")
    selection = choose(pattern)
    if sys.stderr.isatty() and not json:
        print("Inspecting the hosts and measuring idle servers; this takes up to a minute.", file=sys.stderr)
    try:
        rows = ask(selection, token_s)
    finally:
        hang_up(selection.fleet.members)
    if json:
        for row in rows:
            say_json(asdict(row))
    else:
        show(rows)
    return [row.exit for row in rows]


def ask(selection: Selection, token_s: float) -> list[Diagnosis]:
    """Return every host's diagnosis, in inventory order, including hosts that can't be queried."""
    members = selection.fleet.members
    abouts = {member.host.name: about(selection, member.host) for member in members}

    def header(member: Member) -> dict[str, Any]:
        recipe_facts = {name: value for name, value in abouts[member.host.name].items() if name != "error"}
        return question("diagnose", {"token_s": token_s, **recipe_facts})

    answers = host_requests.everyone(members, header, "task_finished")
    return [
        _row(member.host, _diagnosed(answer, member.host), abouts[member.host.name])
        for member, answer in zip(members, answers, strict=True)
    ]


def _diagnosed(answer: host_requests.Answer, host: Host) -> host_requests.Answer:
    """Return the diagnosis in a host's answer, or the host's error. The module fails for an unhealthy server."""
    if isinstance(answer, SparkwrightError):
        return answer
    if "causes" not in answer["data"]:
        return recap_error(answer)
    try:
        return host_requests.checked("diagnose", answer["data"], host=host.name)
    except SparkwrightError as error:
        return error


def about(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the description of a host's server in the user's files.

    A mistake in the files is reported as `error` without hiding anything else.
    """
    if not host.recipe:
        return {}
    try:
        wanted = recipe.load(selection.project.root, host.recipe)
    except SparkwrightError as error:
        return {"error": str(error)}
    worker = host.cluster is not None and host.name != host.cluster.head  # a worker has no API
    return {
        "container": wanted.file.container.name,
        "base_url": "" if worker else f"http://127.0.0.1:{recipe.serve_port(host, wanted)}",
        "model": wanted.served_name,
        "model_id": wanted.file.model.id,
        "tok_per_s": wanted.file.expect.tok_per_s,
        "platform": wanted.file.platform,
    }


def _row(host: Host, answer: host_requests.Answer, known: Mapping[str, Any]) -> Diagnosis:
    if isinstance(answer, SparkwrightError):
        state = "unreachable" if answer.exit is Exit.UNREACHABLE else "unknown"
        found = Diagnosis(host.name, state, str(answer), error=str(answer), exit=answer.exit)
    else:
        reply = {name: answer[name] for name in FIELDS if name in answer}
        causes = tuple(Cause(**{name: row[name] for name in CAUSE}) for row in answer["causes"])
        found = Diagnosis(host.name, **reply, exit=Exit(answer["exit"]), causes=causes)
    causes = tuple(replace(cause, fix=named(cause.fix, host)) for cause in found.causes)
    if "error" in known:
        causes += (Cause("the host's recipe can't be read", "unknown", known["error"]),)
    return replace(found, fix=named(found.fix, host), causes=causes)


#: columns and lines to assume without a terminal
WIDE = (120, 24)
LEAST = 40
#: verdicts whose causes are listed with evidence and fix
LISTED = ("found", "possible", "noted")
#: verdicts whose causes share a paragraph, with its title
SUMMED = {"unknown": "unknown", "excluded": "ruled out"}
STYLES = {"found": "failed", "possible": "changed"}
MARGIN = max(map(len, (*LISTED, *SUMMED.values()))) + 2


def show(rows: Sequence[Diagnosis]) -> None:
    """Print every host's diagnosis, separated by blank lines, with the host's name if there are several."""
    width, console = max(LEAST, shutil.get_terminal_size(WIDE).columns), terminal()
    for n, row in enumerate(map(_typed, rows)):
        if n:
            console.print()
        for style, text in lines(row, width, named=len(rows) > 1):
            printed(console, style, text)


def _typed(row: Diagnosis) -> Diagnosis:
    """Return a diagnosis whose commands use this program's name."""
    causes = (replace(cause, evidence=typed(cause.evidence), fix=typed(cause.fix)) for cause in row.causes)
    return replace(row, summary=typed(row.summary), fix=typed(row.fix), causes=tuple(causes))


def lines(row: Diagnosis, width: int, *, named: bool) -> Iterator[tuple[str, str]]:
    """Yield the style and text of each line.

    Args:
        width: columns of the terminal.
        named: begin with the host's name.
    """
    summary = one_line(row.summary)
    style = {Exit.OK: "ok", Exit.INCONCLUSIVE: "changed"}.get(row.exit, "failed")
    yield style, f"{row.host}: {summary}" if named else summary
    causes = row.causes
    if row.fix and row.fix not in [cause.fix for cause in causes]:
        yield "fix", f"→ {row.fix}"
    if causes:
        yield "", ""
    for verdict in LISTED:
        for cause in causes:
            if cause.verdict == verdict:
                yield from _cause(cause, width)
    for verdict, title in SUMMED.items():
        reported = "; ".join(_short(cause) for cause in causes if cause.verdict == verdict)
        if reported:
            yield from (("muted", text) for text in _wrapped(reported, title, width))
    if row.sandbox:
        yield "muted", words.simulated(row.host)


def _cause(cause: Cause, width: int) -> Iterator[tuple[str, str]]:
    style = STYLES.get(cause.verdict, "plain")
    yield from ((style, text) for text in _wrapped(cause.cause, cause.verdict, width))
    yield from (("plain", text) for text in _wrapped(cause.evidence, "", width))
    if cause.fix:
        yield from (("fix", text) for text in _wrapped(f"→ {cause.fix}", "", width))


def _short(cause: Cause) -> str:
    """Return a cause as one line, without the evidence for causes that were ruled out, which `--json` includes."""
    return f"{cause.cause}: {cause.evidence}" if cause.verdict == "unknown" else cause.cause


def _wrapped(text: str, title: str, width: int) -> list[str]:
    """Return the text next to its title, wrapped to the width. Words longer than a line are broken."""
    indent = " " * MARGIN
    first = f"{title:<{MARGIN}}"
    return textwrap.wrap(one_line(text), width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
