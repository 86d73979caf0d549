"""The `diagnose` command: the questions to the hosts and their answers. console/diagnosis.py lays out the text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sparkwright.app.connect import Selection, choose
from sparkwright.app.questions import host_requests
from sparkwright.console.out import say_json
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.fixes import named
from sparkwright.fleet.member import Member, hang_up
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

#: fields of the JSON output, in this order, also for a host that gave no answer
FIELDS: dict[str, Any] = {
    "schema": 1,
    "state": "",
    "summary": "",
    "fix": "",
    "error": "",
    "exit": 0,
    "tok_per_s": None,
    "expected_tok_per_s": None,
    "expected_by": None,
    "container": {},
    "gpu": {},
    "causes": [],
    "sandbox": False,
}


def run(pattern: str, *, token_s: float, json: bool) -> list[int]:
    """Diagnose the hosts of a pattern, print the result, and return the exit codes."""
    if token_s < 0:
        raise Refused(f"--token-s must be at least 0, got {token_s:g}.")
    selection = choose(pattern)
    if sys.stderr.isatty() and not json:
        print("Looking, and measuring what is idle: up to a minute.", file=sys.stderr)
    try:
        rows = ask(selection, token_s)
    finally:
        hang_up(selection.fleet.members)
    if json:
        for row in rows:
            say_json(row)
    else:
        from sparkwright.console import diagnosis

        diagnosis.show(rows)
    return [row["exit"] for row in rows]


def ask(selection: Selection, token_s: float) -> list[dict[str, Any]]:
    """Return every host's diagnosis, in the order of the inventory. A host that can't be asked has one too."""
    members = selection.fleet.members
    abouts = {member.host.name: about(selection, member.host) for member in members}

    def header(member: Member) -> dict[str, Any]:
        recipe_facts = {name: value for name, value in abouts[member.host.name].items() if name != "error"}
        return {"verb": "diagnose", "token_s": token_s, **recipe_facts}

    answers = host_requests.everyone(members, header, "diagnosis")
    return [_row(value.host, answer, abouts[value.host.name]) for value, answer in zip(members, answers, strict=True)]


def about(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the description of a host's server in the user's files.

    A mistake in the files is reported as `error`, and hides nothing else.
    """
    if not host.recipe:
        return {}
    try:
        wanted = recipe.load(selection.project.root, host.recipe)
    except SparkwrightError as error:
        return {"error": str(error)}
    worker = host.cluster is not None and host.name != host.cluster.head  # it has no API
    return {
        "container": wanted.file.container.name,
        "base_url": "" if worker else f"http://127.0.0.1:{recipe.serve_port(host, wanted)}",
        "model": wanted.served_name,
        "model_id": wanted.file.model.id,
        "tok_per_s": wanted.file.expect.tok_per_s,
        "platform": wanted.file.platform,
    }


def _row(host: Host, answer: host_requests.Answer, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a host's answer in the form of --json."""
    if isinstance(answer, SparkwrightError):
        state = "unreachable" if answer.exit is Exit.UNREACHABLE else "unknown"
        reply = {"state": state, "summary": str(answer), "error": str(answer), "exit": int(answer.exit)}
    else:
        reply = {name: answer[name] for name in FIELDS if name in answer}
    row = {"host": host.name, **FIELDS, **reply}
    row["fix"] = named(row["fix"], host)
    row["causes"] = [{**cause, "fix": named(cause["fix"], host)} for cause in row["causes"]]
    if "error" in known:
        unread = {"cause": "the host's recipe can't be read", "verdict": "unknown", "evidence": known["error"]}
        row["causes"] = [*row["causes"], {**unread, "fix": ""}]
    return row
