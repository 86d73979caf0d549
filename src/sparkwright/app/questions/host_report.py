"""The `report` command: the questions to the hosts, and the page that it writes."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import html, units
from sparkwright.app.connect import Selection
from sparkwright.app.questions import fan_out
from sparkwright.console.out import error_row, say, say_json
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.fleet.member import broke, hang_up
from sparkwright.host.state import write_atomically
from sparkwright.visible import count


def write(selection: Selection, since: str, to: str, *, json: bool) -> list[int]:
    """Ask every host for its checks and write the page. Return the exit codes."""
    span_s = units.seconds(since, "--since", least_s=60)
    until_s = time.time()
    since_s = until_s - span_s
    hosts = ask(selection, since_s, until_s)
    if json:
        for host in hosts:
            rows = [] if host.error else [asdict(span) for span in host.spans]
            about: dict[str, Any] = {
                "host": host.name,
                "span_s": host.span_s,
                "checks": len(host.checks),
                "spans": rows,
            }
            say_json({**about, **(error_row(host.error, host.error_exit) if host.error else {})})
    else:
        path = Path(to)
        try:
            write_atomically(path, html.page(hosts, since_s, until_s).encode(), mode=0o644)
        except OSError as error:
            raise Refused(f"can't be written: {error.strerror}.", where=str(path)) from None
        checks = count(sum(len(host.checks) for host in hosts), "check")
        say(f"{path}: {count(len(hosts), 'host')}, {checks}")
        for host in hosts:
            if host.error:
                say(f"{host.name}: {host.error}")
    return [host.error_exit for host in hosts]


def ask(selection: Selection, since_s: float, until_s: float) -> list[html.Host]:
    """Return the checks of every host in a period. A host that can't be asked has an error instead."""
    members = selection.fleet.members
    try:
        answers = fan_out.everyone(members, lambda member: {"verb": "checks", "since_s": since_s}, "checks")
    finally:
        hang_up(members)
    return [_host(member.host.name, answer, since_s, until_s) for member, answer in zip(members, answers, strict=True)]


def _host(name: str, answer: fan_out.Answer, since_s: float, until_s: float) -> html.Host:
    if not isinstance(answer, SparkwrightError):
        try:
            return html.of(name, answer, since_s, until_s)
        except ValueError as error:
            answer = Failed(f"its answer can't be used: {error}.")
        except Exception as error:
            answer = broke(error)
    return html.Host(name, since_s, until_s, error=str(answer), error_exit=int(answer.exit))
