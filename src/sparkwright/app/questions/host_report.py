"""The `report` command: the questions to the hosts, and the page that it writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import html, units
from sparkwright.app.connect import Selection
from sparkwright.app.questions import host_requests
from sparkwright.console import grid
from sparkwright.console.out import error_row, say, say_json
from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.fleet.member import broke, hang_up
from sparkwright.host.state import write_atomically
from sparkwright.project.inventory.host import Host
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
        answers = host_requests.everyone(members, lambda member: {"verb": "checks", "since_s": since_s}, "checks")
    finally:
        hang_up(members)
    return [_host(member.host.name, answer, since_s, until_s) for member, answer in zip(members, answers, strict=True)]


def _host(name: str, answer: host_requests.Answer, since_s: float, until_s: float) -> html.Host:
    if not isinstance(answer, SparkwrightError):
        try:
            return html.of(name, answer, since_s, until_s)
        except ValueError as error:
            answer = Failed(f"its answer can't be used: {error}.")
        except Exception as error:
            answer = broke(error)
    return html.Host(name, since_s, until_s, error=str(answer), error_exit=int(answer.exit))


COLUMNS = grid.columns(("HOST", 0), ("ADDRESS", 0), ("GROUPS", 1), ("RECIPE", 0))


def show_host_list(hosts: Sequence[Host], *, json: bool) -> None:
    """Print one line per host: address, groups, recipe."""
    if json:
        for host in hosts:
            about = {"host": host.name, "connection": host.connection, "address": host.address}
            say_json({**about, "groups": list(host.groups), "recipe": host.recipe})
        return
    ways = [host.connection if host.connection != "ssh" else f"ssh {host.address}" for host in hosts]
    rows = [(host.name, way, ",".join(host.groups), host.recipe or "-") for host, way in zip(hosts, ways, strict=True)]
    grid.show_plain_table(COLUMNS, rows)
