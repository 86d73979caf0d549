"""What `doctor` asks of hosts, how the answers are shown, and the repairs that a person agreed to."""

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
from sparkwright.app.questions.one_module import ask_module
from sparkwright.console import grid, words
from sparkwright.console.events import tables
from sparkwright.console.events.lines import budget_lines
from sparkwright.console.events.live_lines import styled
from sparkwright.console.out import say, say_json
from sparkwright.console.terminal import terminal
from sparkwright.doctor.checks import clock
from sparkwright.doctor.fixes import FIXES
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

COLUMNS = (("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))

#: checks that are about a server: of several each has its own; all others are about the machine
OF_SERVER = ("port", "image platform", "memory budget")


@dataclass
class HostReport:
    """One host's answer. error: why there is none. fixed: what was done. broken: what was tried in vain."""

    host: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    user: str = ""
    error: str = ""
    error_exit: Exit = Exit.OK
    fixed: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    sandbox: bool = False
    #: of the recipe's server on this host; None without one
    budget: dict[str, Any] | None = None

    @property
    def bad(self) -> bool:
        return any(one["verdict"] == "bad" for one in self.findings)

    @property
    def repairs(self) -> list[str]:
        """What may be done about it, each once."""
        return list(dict.fromkeys(one["repair"] for one in self.findings if one["repair"]))

    @property
    def exit(self) -> Exit:
        """How the command ends for this host."""
        return self.error_exit if self.error else Exit.FAILED if self.bad or self.broken else Exit.OK


def run(pattern: str, *, fix: bool, agreed: Callable[[], bool], json: bool) -> list[Exit]:
    """Look, show; with fix: show what would be done, ask, do it, and look again over a new login."""
    seen = inspect(machines(choose(pattern)))
    wanted = {one.host: one.repairs for one in seen if one.repairs} if fix else {}
    if wanted:
        if not json:
            _show(seen)
        file = sys.stderr if json else sys.stdout
        say("\nThis can be done now:", file=file)
        for one in seen:
            for name in one.repairs:
                say(f"  {one.host}: {FIXES[name].manual_command(one.user)}   # {FIXES[name].says}", file=file)
        if agreed():
            seen = _repair(pattern, seen, wanted)
        elif not json:
            return [one.exit for one in seen]
    if json:
        for one in seen:
            say_json(_json(one))
    else:
        _show(seen)
        if fix and not wanted:
            alone = all(one.sandbox for one in seen)
            say("Nothing is fixed in the sandbox." if alone else "sparkwright can fix none of this by itself.")
    return [one.exit for one in seen]


def inspect(chosen: Selection) -> list[HostReport]:
    """Every host's findings, in the order of the inventory. Closes the connections."""
    chosen.fleet.connect()

    def checks_of(member: Member) -> HostReport:
        found = answer_of(chosen, member)
        beside = clock.against(found["now_s"], time.time(), found["user"])
        sandbox = member.host.connection == "sandbox"
        rows = [*found["findings"], beside.to_json()]
        return HostReport(member.host.name, rows, found["user"], sandbox=sandbox, budget=found["budget"])

    answers = chosen.fleet.ask(checks_of)
    failed = {
        name: HostReport(name, error=error.message, error_exit=error.exit)
        for name, error in chosen.fleet.errors().items()
    }
    return [answers.get(member.host.name) or failed[member.host.name] for member in chosen.fleet.members]


def answer_of(chosen: Selection, member: Member) -> dict[str, Any]:
    """What the module says of a machine, with the findings of each of its servers."""
    first, *others = chosen.inventory.servers_of(member.host.name)
    found = ask_module(chosen.fleet, member, "doctor", wanted(chosen, first))
    for host in others:
        more = ask_module(chosen.fleet, member, "doctor", wanted(chosen, host))["findings"]
        found["findings"] += [one for one in more if one["check"] in OF_SERVER]
    return found


def _repair(pattern: str, seen: Sequence[HostReport], wanted: Mapping[str, Sequence[str]]) -> list[HostReport]:
    """Apply the confirmed fixes. The checks after it use new connections: a login keeps the groups it began with."""
    chosen = machines(choose(pattern))
    fixed, broken = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    users = {one.host: one.user for one in seen}

    def act(member: Member) -> None:
        name = member.host.name
        member.secrets = chosen.inventory.secrets(member.host)
        for one in wanted[name]:
            try:
                args = {"name": one, "user": users[name]}
                ask_module(chosen.fleet, member, "fix", args, exclusive=True, become=True)
            except SparkwrightError as error:
                broken[name].append(str(error))
            else:
                fixed[name].append(one)

    try:
        chosen.fleet.each([member for member in chosen.fleet.members if member.host.name in wanted], act)
    finally:
        chosen.fleet.close()
    again = inspect(machines(choose(pattern)))
    for one in again:
        one.fixed, one.broken = fixed[one.host], broken[one.host]
    return again


def wanted(chosen: Selection, host: Host) -> dict[str, Any]:
    """What the host's recipe asks of it, as arguments of the module; next to nothing without a recipe."""
    known: dict[str, Any] = {**recipe.DEFAULTS, **host.vars}
    about = {"host": host.machine, "ollama": str(known["ollama"]), "reserve_gib": float(known["reserve_gib"])}
    if not host.recipe:
        return about
    wanted = recipes.recipe_of(chosen.project, host)
    entry = lock_of(chosen.project, host).image(wanted.image)
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
        "engine_memory": _engine_memory(chosen, host, wanted),
    }


def _engine_memory(chosen: Selection, host: Host, wanted: recipe.Recipe) -> dict[str, Any]:
    """What the recipe's server takes of the memory; empty for one of a cluster on a host that is in none."""
    if wanted.split is not None and host.cluster is None:
        return {}
    pinned = entries(lock_of(chosen.project, host), wanted)
    found: dict[str, Any] = recipe.scope(host, recipes.user_of(host), wanted, pinned)["engine_memory"]
    return found


def _show(seen: Sequence[HostReport]) -> None:
    console = terminal()
    for one in seen:
        if len(seen) > 1:
            console.print()
            console.print(one.host, style="bold")
        if one.error:
            console.print(styled("failed", one.error), soft_wrap=True)
            continue
        if one.sandbox:
            console.print(styled("muted", words.simulated(one.host)), soft_wrap=True)
        for style, text in tables.lines([_row(finding) for finding in one.findings], COLUMNS, grid.width()):
            console.print(styled(style, text), soft_wrap=True)
        for text in budget_lines(one.budget):
            console.print(styled("muted", f"  {text}"), soft_wrap=True)
        for name in one.fixed:
            console.print(styled("changed", f"fixed: {name}: {FIXES[name].says}"), soft_wrap=True)
        for message in one.broken:
            console.print(styled("failed", f"not fixed: {message}"), soft_wrap=True)
        counts = Counter(row["verdict"] for row in one.findings)
        counted = ", ".join(f"{counts[name]} {name}" for name in ("bad", "warning", "unknown", "ok") if counts[name])
        console.print(f"{one.host}: {counted}")


def _row(finding: Mapping[str, Any]) -> dict[str, Any]:
    source = f" [{finding['source']}]" if finding["source"] and finding["verdict"] in ("warning", "bad") else ""
    return {**finding, "evidence": f"{finding['evidence']}{source}"}


def _json(one: HostReport) -> dict[str, Any]:
    if one.error:
        return {"host": one.host, "error": one.error, "exit": int(one.exit)}
    rows = [{**row, "repair": bool(row["repair"])} for row in one.findings]
    more = {"fixed": one.fixed, "not_fixed": one.broken, "bad": one.bad, "budget": one.budget}
    return {"host": one.host, "findings": rows, **more, "exit": int(one.exit)}
