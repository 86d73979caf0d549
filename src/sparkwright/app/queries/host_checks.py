"""The `doctor` command: query the hosts, print the findings, and apply the repairs that the user confirmed."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkwright.app.connect import Selection, select_hosts, select_machines
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.app.queries.host_requests import query_module, run_module
from sparkwright.console import formatters
from sparkwright.console.command_output import print_json_line, print_prose, print_text, terminal_width
from sparkwright.console.events import tables
from sparkwright.console.events.lines import budget_lines
from sparkwright.console.events.live_lines import print_line
from sparkwright.console.terminal import build_console
from sparkwright.doctor.checks import operating_system
from sparkwright.doctor.checks.registry import SERVER_CHECKS
from sparkwright.doctor.host import FIXES, format_counts
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host

COLUMNS = (("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))


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
    repairs_made: list[str] = field(default_factory=list)
    #: repairs that failed
    failed_repairs: list[str] = field(default_factory=list)
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
        return self.error_exit if self.error else Exit.FAILED if self.bad or self.failed_repairs else Exit.OK


def run(pattern: str, *, fix: bool, confirm: Callable[[], bool], json: bool) -> list[Exit]:
    """Check the hosts and print the findings.

    Args:
        fix: list the repairs, ask for confirmation, apply them, and check again over a new login.
    """
    reports = query_reports(select_machines(select_hosts(pattern)))
    repairs_by_host = (
        {host_report.host: host_report.repairs for host_report in reports if host_report.repairs} if fix else {}
    )
    if repairs_by_host:
        if not json:
            _print_reports(reports)
        file = sys.stderr if json else sys.stdout
        print_text("\nThese repairs are available:", file=file)
        for host_report in reports:
            for name in host_report.repairs:
                print_text(
                    f"  {host_report.host}: {FIXES[name].manual_command(host_report.user)}   # {FIXES[name].description}",
                    file=file,
                )
        if confirm():
            reports = _apply_repairs(pattern, reports, repairs_by_host)
        elif not json:
            return [host_report.exit for host_report in reports]
    if json:
        for host_report in reports:
            print_json_line(_report_json(host_report))
    else:
        _print_reports(reports)
        if fix and not repairs_by_host:
            all_sandboxes = all(host_report.sandbox for host_report in reports)
            print_prose(
                "Nothing is fixed in the sandbox." if all_sandboxes else "sparkwright can fix none of this by itself."
            )
    return [host_report.exit for host_report in reports]


def query_reports(selection: Selection) -> list[HostReport]:
    """Return every host's findings, in inventory order. Closes the connections."""
    selection.fleet.connect()

    def query_report(member: Member) -> HostReport:
        answer = query_machine(selection, member)
        clock_finding = operating_system.compare_clocks(answer["now_s"], time.time(), answer["user"])
        sandbox = member.host.connection == "sandbox"
        rows = [*answer["findings"], clock_finding.to_json()]
        return HostReport(member.host.name, rows, answer["user"], sandbox=sandbox, budget=answer["budget"])

    answers = selection.fleet.ask(query_report)
    failed = {
        name: HostReport(name, error=error.message, error_exit=error.exit)
        for name, error in selection.fleet.errors().items()
    }
    return [answers.get(member.host.name) or failed[member.host.name] for member in selection.fleet.members]


def query_machine(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the module's answer for a machine, with the findings of each of its servers."""
    first, *others = selection.inventory.servers_of(member.host.name)
    answer = query_module(selection.fleet, member, "doctor", doctor_arguments(selection, first))
    for host in others:
        server_findings = query_module(selection.fleet, member, "doctor", doctor_arguments(selection, host))["findings"]
        answer["findings"] += [item for item in server_findings if item["check"] in SERVER_CHECKS]
    return answer


def _apply_repairs(
    pattern: str, reports: Sequence[HostReport], repairs_by_host: Mapping[str, Sequence[str]]
) -> list[HostReport]:
    """Apply the confirmed repairs and check again over new connections, because a login's groups do not change."""
    selection = select_machines(select_hosts(pattern))
    fixed, broken = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    users = {host_report.host: host_report.user for host_report in reports}

    def repair_host(member: Member) -> None:
        name = member.host.name
        member.secrets = selection.inventory.secrets(member.host)
        for item in repairs_by_host[name]:
            try:
                args = {"name": item, "user": users[name]}
                run_module(selection.fleet, member, "fix", args, exclusive=True, become=True)
            except SparkwrightError as error:
                broken[name].append(str(error))
            else:
                fixed[name].append(item)

    try:
        selection.fleet.each(
            [member for member in selection.fleet.members if member.host.name in repairs_by_host], repair_host
        )
    finally:
        selection.fleet.close()
    new_reports = query_reports(select_machines(select_hosts(pattern)))
    for host_report in new_reports:
        host_report.repairs_made, host_report.failed_repairs = fixed[host_report.host], broken[host_report.host]
    return new_reports


def doctor_arguments(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the module's arguments from the host's recipe, or only the machine's if it has no recipe."""
    variables: dict[str, Any] = {**recipe.DEFAULTS, **host.vars}
    machine_arguments = {
        "host": host.machine,
        "ollama": str(variables["ollama"]),
        "reserve_gib": float(variables["reserve_gib"]),
    }
    if not host.recipe:
        return machine_arguments
    host_recipe = recipes.load_host_recipe(selection.project, host)
    entry = load_lock(selection.project, host).image(host_recipe.image)
    is_worker = host.cluster is not None and host.cluster.head != host.name
    return {
        **machine_arguments,
        "recipe": host_recipe.name,
        "container": host_recipe.file.container.name,
        "port": 0 if is_worker else recipe.serve_port(host, host_recipe),
        "image": host_recipe.image,
        "platforms": list((entry or {}).get("platforms") or []) or None,
        "utilization": host_recipe.memory_utilization,
        "ipc": host_recipe.to_json()["container"]["ipc"],
        "model_dir": host_recipe.file.model.dir,
        "engine_memory": _engine_memory(selection, host, host_recipe),
    }


def _engine_memory(selection: Selection, host: Host, host_recipe: recipe.Recipe) -> dict[str, Any]:
    """Return the memory that the recipe's server needs.

    Empty if the recipe is for a cluster and the host is in none.
    """
    if host_recipe.split is not None and host.cluster is None:
        return {}
    pins = lock_entries(load_lock(selection.project, host), host_recipe)
    memory: dict[str, Any] = recipe.scope(host, recipes.login_user(host), host_recipe, pins)["engine_memory"]
    return memory


def _print_reports(reports: Sequence[HostReport]) -> None:
    console = build_console()
    for host_report in reports:
        if len(reports) > 1:
            console.print()
            console.print(host_report.host, style="bold")
        if host_report.error:
            print_line(console, "failed", host_report.error)
            continue
        if host_report.sandbox:
            print_line(console, "muted", formatters.sandbox_notice(host_report.host))
        for style, text in tables.format_table(
            [_finding_row(finding) for finding in host_report.findings], COLUMNS, terminal_width()
        ):
            print_line(console, style, text)
        for text in budget_lines(host_report.budget):
            print_line(console, "muted", f"  {text}")
        for name in host_report.repairs_made:
            print_line(console, "changed", f"fixed: {name}: {FIXES[name].description}")
        for message in host_report.failed_repairs:
            print_line(console, "failed", f"not fixed: {message}")
        console.print(f"{host_report.host}: {format_counts(row['verdict'] for row in host_report.findings)}")


def _finding_row(finding: Mapping[str, Any]) -> dict[str, Any]:
    source = f" [{finding['source']}]" if finding["source"] and finding["verdict"] in ("warning", "bad") else ""
    return {**finding, "evidence": f"{finding['evidence']}{source}"}


def _report_json(host_report: HostReport) -> dict[str, Any]:
    if host_report.error:
        return {"host": host_report.host, "error": host_report.error, "exit": int(host_report.exit)}
    rows = [{**row, "repair": bool(row["repair"])} for row in host_report.findings]
    other_fields = {
        "fixed": host_report.repairs_made,
        "not_fixed": host_report.failed_repairs,
        "bad": host_report.bad,
        "budget": host_report.budget,
    }
    return {"host": host_report.host, "findings": rows, **other_fields, "exit": int(host_report.exit)}
