"""The `doctor` command: query the hosts, print the findings, and apply the repairs that the user confirmed."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.app.connect import Selection, choose, machines
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.app.questions.host_requests import ask_module, run_module
from sparkwright.console import words
from sparkwright.console.events import tables
from sparkwright.console.events.lines import budget_lines
from sparkwright.console.events.live_lines import printed
from sparkwright.console.out import say, say_json, say_prose, width
from sparkwright.console.terminal import terminal
from sparkwright.doctor.checks import operating_system
from sparkwright.doctor.host import FIXES
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

COLUMNS = (("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))

#: checks that are made for each server of a machine; all others concern the machine
OF_SERVER = ("port", "image platform", "memory budget")


@dataclass
class HostReport:
    """The checks of one host, and the repairs that were made."""

    host: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    user: str = ""
    #: reason why there is no answer
    error: str = ""
    error_exit: Exit = Exit.OK
    #: repairs that were made
    fixed: list[str] = field(default_factory=list)
    #: repairs that failed
    broken: list[str] = field(default_factory=list)
    sandbox: bool = False
    #: memory budget of the recipe's server on this host; None if there is none
    budget: dict[str, Any] | None = None

    @property
    def bad(self) -> bool:
        return any(finding["verdict"] == "bad" for finding in self.findings)

    @property
    def repairs(self) -> list[str]:
        """The repairs that the findings propose, without duplicates."""
        return list(dict.fromkeys(finding["repair"] for finding in self.findings if finding["repair"]))

    @property
    def exit(self) -> Exit:
        """The command's exit code for this host."""
        return self.error_exit if self.error else Exit.FAILED if self.bad or self.broken else Exit.OK


def run(pattern: str, *, fix: bool, agreed: Callable[[], bool], json: bool) -> list[Exit]:
    """Check the hosts and print the findings.

    Args:
        fix: list the repairs, ask for confirmation, apply them, and check again over a new login.
    """
    seen = inspect(machines(choose(pattern)))
    wanted = {host_report.host: host_report.repairs for host_report in seen if host_report.repairs} if fix else {}
    if wanted:
        if not json:
            _show(seen)
        file = sys.stderr if json else sys.stdout
        say("\nThese repairs are available:", file=file)
        for host_report in seen:
            for name in host_report.repairs:
                say(
                    f"  {host_report.host}: {FIXES[name].manual_command(host_report.user)}   # {FIXES[name].says}",
                    file=file,
                )
        if agreed():
            seen = _repair(pattern, seen, wanted)
        elif not json:
            return [host_report.exit for host_report in seen]
    if json:
        for host_report in seen:
            say_json(_json(host_report))
    else:
        _show(seen)
        if fix and not wanted:
            alone = all(host_report.sandbox for host_report in seen)
            say_prose("Nothing is fixed in the sandbox." if alone else "sparkwright can fix none of this by itself.")
    return [host_report.exit for host_report in seen]


def inspect(selection: Selection) -> list[HostReport]:
    """Return every host's findings, in inventory order. Closes the connections."""
    selection.fleet.connect()

    def checks_of(member: Member) -> HostReport:
        found = answer_of(selection, member)
        clock_finding = operating_system.against(found["now_s"], time.time(), found["user"])
        sandbox = member.host.connection == "sandbox"
        rows = [*found["findings"], clock_finding.to_json()]
        return HostReport(member.host.name, rows, found["user"], sandbox=sandbox, budget=found["budget"])

    answers = selection.fleet.ask(checks_of)
    failed = {
        name: HostReport(name, error=error.message, error_exit=error.exit)
        for name, error in selection.fleet.errors().items()
    }
    return [answers.get(member.host.name) or failed[member.host.name] for member in selection.fleet.members]


def answer_of(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the module's answer for a machine, with the findings of each of its servers."""
    first, *others = selection.inventory.servers_of(member.host.name)
    found = ask_module(selection.fleet, member, "doctor", wanted(selection, first))
    for host in others:
        more = ask_module(selection.fleet, member, "doctor", wanted(selection, host))["findings"]
        found["findings"] += [item for item in more if item["check"] in OF_SERVER]
    return found


def _repair(pattern: str, seen: Sequence[HostReport], wanted: Mapping[str, Sequence[str]]) -> list[HostReport]:
    """Apply the confirmed repairs and check again over new connections, because a login's groups do not change."""
    selection = machines(choose(pattern))
    fixed, broken = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    users = {host_report.host: host_report.user for host_report in seen}

    def act(member: Member) -> None:
        name = member.host.name
        member.secrets = selection.inventory.secrets(member.host)
        for item in wanted[name]:
            try:
                args = {"name": item, "user": users[name]}
                run_module(selection.fleet, member, "fix", args, exclusive=True, become=True)
            except SparkwrightError as error:
                broken[name].append(str(error))
            else:
                fixed[name].append(item)

    try:
        selection.fleet.each([member for member in selection.fleet.members if member.host.name in wanted], act)
    finally:
        selection.fleet.close()
    again = inspect(machines(choose(pattern)))
    for host_report in again:
        host_report.fixed, host_report.broken = fixed[host_report.host], broken[host_report.host]
    return again


def wanted(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the module's arguments from the host's recipe, or only the machine's if it has no recipe."""
    known: dict[str, Any] = {**recipe.DEFAULTS, **host.vars}
    about = {"host": host.machine, "ollama": str(known["ollama"]), "reserve_gib": float(known["reserve_gib"])}
    if not host.recipe:
        return about
    wanted = recipes.recipe_of(selection.project, host)
    entry = lock_of(selection.project, host).image(wanted.image)
    worker = host.cluster is not None and host.cluster.head != host.name
    return {
        **about,
        "recipe": wanted.name,
        "container": wanted.file.container.name,
        "port": 0 if worker else recipe.serve_port(host, wanted),
        "image": wanted.image,
        "platforms": list((entry or {}).get("platforms") or []) or None,
        "utilization": wanted.memory_utilization,
        "ipc": wanted.to_json()["container"]["ipc"],
        "model_dir": wanted.file.model.dir,
        "engine_memory": _engine_memory(selection, host, wanted),
    }


def _engine_memory(selection: Selection, host: Host, wanted: recipe.Recipe) -> dict[str, Any]:
    """Return the memory that the recipe's server needs.

    Empty if the recipe is for a cluster and the host is in none.
    """
    if wanted.split is not None and host.cluster is None:
        return {}
    pinned = entries(lock_of(selection.project, host), wanted)
    found: dict[str, Any] = recipe.scope(host, recipes.user_of(host), wanted, pinned)["engine_memory"]
    return found


def _show(seen: Sequence[HostReport]) -> None:
    console = terminal()
    for host_report in seen:
        if len(seen) > 1:
            console.print()
            console.print(host_report.host, style="bold")
        if host_report.error:
            printed(console, "failed", host_report.error)
            continue
        if host_report.sandbox:
            printed(console, "muted", words.simulated(host_report.host))
        for style, text in tables.lines([_row(finding) for finding in host_report.findings], COLUMNS, width()):
            printed(console, style, text)
        for text in budget_lines(host_report.budget):
            printed(console, "muted", f"  {text}")
        for name in host_report.fixed:
            printed(console, "changed", f"fixed: {name}: {FIXES[name].says}")
        for message in host_report.broken:
            printed(console, "failed", f"not fixed: {message}")
        counts = Counter(row["verdict"] for row in host_report.findings)
        counted = ", ".join(f"{counts[name]} {name}" for name in ("bad", "warning", "unknown", "ok") if counts[name])
        console.print(f"{host_report.host}: {counted}")


def _row(finding: Mapping[str, Any]) -> dict[str, Any]:
    source = f" [{finding['source']}]" if finding["source"] and finding["verdict"] in ("warning", "bad") else ""
    return {**finding, "evidence": f"{finding['evidence']}{source}"}


def _json(host_report: HostReport) -> dict[str, Any]:
    if host_report.error:
        return {"host": host_report.host, "error": host_report.error, "exit": int(host_report.exit)}
    rows = [{**row, "repair": bool(row["repair"])} for row in host_report.findings]
    more = {
        "fixed": host_report.fixed,
        "not_fixed": host_report.broken,
        "bad": host_report.bad,
        "budget": host_report.budget,
    }
    return {"host": host_report.host, "findings": rows, **more, "exit": int(host_report.exit)}
