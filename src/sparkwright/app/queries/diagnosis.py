"""The `diagnose` command: query the hosts and print each diagnosis, wrapped to the terminal but never truncated."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sparkwright.app.connect import Selection, select_hosts
from sparkwright.app.queries import host_requests
from sparkwright.console import formatters
from sparkwright.console.command_output import print_json_line
from sparkwright.console.events.live_lines import print_line
from sparkwright.console.rows import Cause, Diagnosis
from sparkwright.console.terminal import build_console
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.fixes import add_host_option
from sparkwright.fleet.member import Member, build_module_request, close_links
from sparkwright.program import rewrite_commands
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import build_recap_error
from sparkwright.visible import one_line

#: fields that are copied from a host's answer; the laptop adds the others
ANSWER_FIELDS = tuple(
    field.name for field in fields(Diagnosis) if field.name not in ("host", "error", "exit", "causes")
)
CAUSE_FIELDS = tuple(field.name for field in fields(Cause))
#: columns and lines that are assumed if there is no terminal
DEFAULT_TERMINAL_SIZE = (120, 24)
MIN_COLUMNS = 40
#: verdicts whose causes are listed with evidence and fix
LISTED_VERDICTS = ("found", "possible", "noted")
#: verdicts whose causes share a paragraph, with the title of the paragraph
SUMMARIZED_VERDICTS = {"unknown": "unknown", "excluded": "ruled out"}
VERDICT_STYLES = {"found": "failed", "possible": "changed"}
TITLE_WIDTH = max(map(len, (*LISTED_VERDICTS, *SUMMARIZED_VERDICTS.values()))) + 2


def run(pattern: str, *, token_timeout_s: float, json: bool) -> list[int]:
    """Diagnose the hosts that match a pattern, print the diagnoses, and return the exit codes.

    Args:
        token_timeout_s: how long a token may take, in seconds; 0 for the limit of the health checks.
    """
    if token_timeout_s < 0:
        raise Refused(f"--token-s must be at least 0, got {token_timeout_s:g}.")
    selection = select_hosts(pattern)
    if sys.stderr.isatty() and not json:
        print("Inspecting the hosts and measuring idle servers; this takes up to a minute.", file=sys.stderr)
    try:
        diagnoses = query_diagnoses(selection, token_timeout_s)
    finally:
        close_links(selection.fleet.members)
    if json:
        for diagnosis in diagnoses:
            print_json_line(asdict(diagnosis))
    else:
        print_diagnoses(diagnoses)
    return [diagnosis.exit for diagnosis in diagnoses]


def query_diagnoses(selection: Selection, token_timeout_s: float) -> list[Diagnosis]:
    """Return every host's diagnosis, in inventory order. That of a host that can't be queried contains the error."""
    members = selection.fleet.members
    descriptions = {member.host.name: describe_server(selection, member.host) for member in members}

    def build_header(member: Member) -> dict[str, Any]:
        recipe_facts = {name: value for name, value in descriptions[member.host.name].items() if name != "error"}
        return build_module_request("diagnose", {"token_s": token_timeout_s, **recipe_facts})

    answers = host_requests.query_members(members, build_header, "task_finished")
    return [
        _build_diagnosis(member.host, _parse_answer(answer, member.host), descriptions[member.host.name])
        for member, answer in zip(members, answers, strict=True)
    ]


def _parse_answer(answer: host_requests.Answer, host: Host) -> host_requests.Answer:
    """Return the diagnosis in a host's answer, or the error. For an unhealthy server, the failed task has a diagnosis."""
    if isinstance(answer, SparkwrightError):
        return answer
    if "causes" not in answer["data"]:
        return build_recap_error(answer)
    try:
        return host_requests.validate_answer("diagnose", answer["data"], host=host.name)
    except SparkwrightError as error:
        return error


def describe_server(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the facts about a host's server from its recipe, or only `error` if the recipe is invalid."""
    if not host.recipe:
        return {}
    try:
        host_recipe = recipe.load(selection.project.root, host.recipe)
    except SparkwrightError as error:
        return {"error": str(error)}
    return {
        "container": host_recipe.file.container.name,
        "base_url": "" if host.is_worker else f"http://127.0.0.1:{recipe.serve_port(host, host_recipe)}",
        "model": host_recipe.served_name,
        "model_id": host_recipe.file.model.id,
        "tok_per_s": host_recipe.file.expect.tok_per_s,
        "platform": host_recipe.file.platform,
    }


def _build_diagnosis(host: Host, answer: host_requests.Answer, description: Mapping[str, Any]) -> Diagnosis:
    if isinstance(answer, SparkwrightError):
        state = "unreachable" if answer.exit is Exit.UNREACHABLE else "unknown"
        diagnosis = Diagnosis(host.name, state, str(answer), error=str(answer), exit=answer.exit)
    else:
        answer_fields = {name: answer[name] for name in ANSWER_FIELDS if name in answer}
        causes = tuple(Cause(**{name: row[name] for name in CAUSE_FIELDS}) for row in answer["causes"])
        diagnosis = Diagnosis(host.name, **answer_fields, exit=Exit(answer["exit"]), causes=causes)
    causes = tuple(replace(cause, fix=add_host_option(cause.fix, host)) for cause in diagnosis.causes)
    if "error" in description:
        causes += (Cause("the host's recipe can't be read", "unknown", description["error"]),)
    return replace(diagnosis, fix=add_host_option(diagnosis.fix, host), causes=causes)


def print_diagnoses(diagnoses: Sequence[Diagnosis]) -> None:
    """Print the diagnoses, separated by blank lines. Each begins with the host's name if there are several."""
    width, console = max(MIN_COLUMNS, shutil.get_terminal_size(DEFAULT_TERMINAL_SIZE).columns), build_console()
    for n, diagnosis in enumerate(map(_with_program_name, diagnoses)):
        if n:
            console.print()
        for style, text in format_lines(diagnosis, width, with_host=len(diagnoses) > 1):
            print_line(console, style, text)


def _with_program_name(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis whose commands use this program's name."""
    causes = (
        replace(cause, evidence=rewrite_commands(cause.evidence), fix=rewrite_commands(cause.fix))
        for cause in diagnosis.causes
    )
    return replace(
        diagnosis,
        summary=rewrite_commands(diagnosis.summary),
        fix=rewrite_commands(diagnosis.fix),
        causes=tuple(causes),
    )


def format_lines(diagnosis: Diagnosis, width: int, *, with_host: bool) -> Iterator[tuple[str, str]]:
    """Yield the style and text of each line of a diagnosis; with `with_host`, the first begins with the host's name."""
    summary = one_line(diagnosis.summary)
    style = {Exit.OK: "ok", Exit.INCONCLUSIVE: "changed"}.get(diagnosis.exit, "failed")
    yield style, f"{diagnosis.host}: {summary}" if with_host else summary
    causes = diagnosis.causes
    if diagnosis.fix and diagnosis.fix not in [cause.fix for cause in causes]:
        yield "fix", f"→ {diagnosis.fix}"
    if causes:
        yield "", ""
    for verdict in LISTED_VERDICTS:
        for cause in causes:
            if cause.verdict == verdict:
                yield from _format_cause(cause, width)
    for verdict, title in SUMMARIZED_VERDICTS.items():
        paragraph = "; ".join(
            # only `--json` shows the evidence that ruled a cause out
            f"{cause.cause}: {cause.evidence}" if verdict == "unknown" else cause.cause
            for cause in causes
            if cause.verdict == verdict
        )
        if paragraph:
            yield from (("muted", text) for text in _wrap(paragraph, title, width))
    if diagnosis.sandbox:
        yield "muted", formatters.sandbox_notice(diagnosis.host)


def _format_cause(cause: Cause, width: int) -> Iterator[tuple[str, str]]:
    style = VERDICT_STYLES.get(cause.verdict, "plain")
    yield from ((style, text) for text in _wrap(cause.cause, cause.verdict, width))
    yield from (("plain", text) for text in _wrap(cause.evidence, "", width))
    if cause.fix:
        yield from (("fix", text) for text in _wrap(f"→ {cause.fix}", "", width))


def _wrap(text: str, title: str, width: int) -> list[str]:
    """Wrap text, with its title in a column to the left of the first line. Words longer than a line are broken."""
    title, indent = f"{title:<{TITLE_WIDTH}}", " " * TITLE_WIDTH
    return textwrap.wrap(one_line(text), width, initial_indent=title, subsequent_indent=indent, break_on_hyphens=False)
