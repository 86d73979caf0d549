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
from sparkwright.doctor.checks.registration import SERVER_CHECKS
from sparkwright.doctor.host import FIXES, format_counts
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.project import recipe
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host

COLUMNS = (("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))


@dataclass
class HostReport:
    """The findings about a host, and its repairs."""

    host: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    #: login name on the host
    user: str = ""
    #: reason why the host could not be checked
    error: str = ""
    error_exit: Exit = Exit.OK
    #: names of the repairs that succeeded
    repairs_made: list[str] = field(default_factory=list)
    #: error messages of the repairs that failed
    repair_errors: list[str] = field(default_factory=list)
    sandbox: bool = False
    #: memory budget of the recipe's server on this host; None if the host has no recipe
    budget: dict[str, Any] | None = None

    @property
    def has_bad_findings(self) -> bool:
        return any(finding["verdict"] == "bad" for finding in self.findings)

    @property
    def repairs(self) -> list[str]:
        """Names of the repairs that the findings propose, without duplicates."""
        return list(dict.fromkeys(finding["repair"] for finding in self.findings if finding["repair"]))

    @property
    def exit(self) -> Exit:
        """The command's exit code for this host."""
        if self.error:
            return self.error_exit
        return Exit.FAILED if self.has_bad_findings or self.repair_errors else Exit.OK


def run(pattern: str, *, fix: bool, confirm: Callable[[], bool], json: bool) -> list[Exit]:
    """Check the hosts, print the findings, and return the exit codes.

    Args:
        fix: list the repairs and, if `confirm` returns True, apply them and check the hosts again.
    """
    reports = query_reports(select_machines(select_hosts(pattern)))
    can_fix = fix and any(report.repairs for report in reports)
    if can_fix:
        if not json:
            _print_reports(reports)
        file = sys.stderr if json else sys.stdout
        print_text("\nAvailable repairs:", file=file)
        for report in reports:
            for name in report.repairs:
                command = FIXES[name].manual_command(report.user)
                print_text(f"  {report.host}: {command}   # {FIXES[name].description}", file=file)
        if confirm():
            reports = _apply_fixes(pattern, reports)
        elif not json:
            return [report.exit for report in reports]
    if json:
        for report in reports:
            print_json_line(_report_json(report))
    else:
        _print_reports(reports)
        if fix and not can_fix:
            all_sandboxes = all(report.sandbox for report in reports)
            print_prose("Nothing is fixed in the sandbox." if all_sandboxes else "No automatic repair is available.")
    return [report.exit for report in reports]


def query_reports(selection: Selection) -> list[HostReport]:
    """Return every host's report, in inventory order. Closes the connections."""
    selection.fleet.connect()

    def query_report(member: Member) -> HostReport:
        answer = query_machine(selection, member)
        clock_finding = operating_system.compare_clocks(answer["now_s"], time.time(), answer["user"])
        sandbox = member.host.connection == "sandbox"
        rows = [*answer["findings"], clock_finding.to_json()]
        return HostReport(member.host.name, rows, answer["user"], sandbox=sandbox, budget=answer["budget"])

    answers = selection.fleet.query_all(query_report)
    failed_reports = {
        name: HostReport(name, error=error.message, error_exit=error.exit)
        for name, error in selection.fleet.errors().items()
    }
    return [answers.get(member.host.name) or failed_reports[member.host.name] for member in selection.fleet.members]


def query_machine(selection: Selection, member: Member) -> dict[str, Any]:
    """Return the `doctor` module's answer for a machine, with the findings about each of its servers."""
    first_server, *other_servers = selection.inventory.servers_of(member.host.name)
    answer = query_module(selection.fleet, member, "doctor", doctor_arguments(selection, first_server))
    for host in other_servers:
        server_findings = query_module(selection.fleet, member, "doctor", doctor_arguments(selection, host))["findings"]
        answer["findings"] += [finding for finding in server_findings if finding["check"] in SERVER_CHECKS]
    return answer


def _apply_fixes(pattern: str, reports: Sequence[HostReport]) -> list[HostReport]:
    """Apply the repairs and check again over new connections, because a user's new group takes effect only at the next login."""
    selection = select_machines(select_hosts(pattern))
    repairs_made, repair_errors = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    reports_by_host = {report.host: report for report in reports if report.repairs}

    def repair_host(member: Member) -> None:
        report = reports_by_host[member.host.name]
        member.secrets = secret_source.read_secrets(member.host)
        for fix_name in report.repairs:
            try:
                args = {"name": fix_name, "user": report.user}
                run_module(selection.fleet, member, "fix", args, exclusive=True, become=True)
            except SparkwrightError as error:
                repair_errors[report.host].append(str(error))
            else:
                repairs_made[report.host].append(fix_name)

    try:
        selection.fleet.run_parallel(
            [member for member in selection.fleet.members if member.host.name in reports_by_host], repair_host
        )
    finally:
        selection.fleet.close()
    new_reports = query_reports(select_machines(select_hosts(pattern)))
    for report in new_reports:
        report.repairs_made, report.repair_errors = repairs_made[report.host], repair_errors[report.host]
    return new_reports


def doctor_arguments(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the `doctor` module's arguments for a host, which describe its server if it has a recipe."""
    variables: dict[str, Any] = {**recipe.DEFAULTS, **host.vars}
    machine_arguments = {
        "host": host.machine,
        "ollama": str(variables["ollama"]),
        "reserve_gib": float(variables["reserve_gib"]),
    }
    if not host.recipe:
        return machine_arguments
    host_recipe = recipes.load_host_recipe(selection.project, host)
    image_entry = load_lock(selection.project, host).image(host_recipe.image)
    return {
        **machine_arguments,
        "recipe": host_recipe.name,
        "container": host_recipe.file.container.name,
        "port": 0 if host.is_worker else recipe.serve_port(host, host_recipe),
        "image": host_recipe.image,
        "platforms": list((image_entry or {}).get("platforms") or []) or None,
        "utilization": host_recipe.memory_utilization,
        "ipc": host_recipe.to_json()["container"]["ipc"],
        "model_dir": host_recipe.file.model.dir,
        "engine_memory": _engine_memory(selection, host, host_recipe),
    }


def _engine_memory(selection: Selection, host: Host, host_recipe: recipe.Recipe) -> dict[str, Any]:
    """Return the memory that the recipe's server needs; empty for a cluster's recipe on a host outside clusters."""
    if host_recipe.split is not None and host.cluster is None:
        return {}
    pins = lock_entries(load_lock(selection.project, host), host_recipe)
    return dict(recipe.scope(host, recipes.login_user(host), host_recipe, pins)["engine_memory"])


def _print_reports(reports: Sequence[HostReport]) -> None:
    console = build_console()
    for report in reports:
        if len(reports) > 1:
            console.print()
            console.print(report.host, style="bold")
        if report.error:
            print_line(console, "failed", report.error)
            continue
        if report.sandbox:
            print_line(console, "muted", formatters.sandbox_notice(report.host))
        for style, text in tables.format_table(
            [_finding_row(finding) for finding in report.findings], COLUMNS, terminal_width()
        ):
            print_line(console, style, text)
        for text in budget_lines(report.budget):
            print_line(console, "muted", f"  {text}")
        for name in report.repairs_made:
            print_line(console, "changed", f"fixed: {name}: {FIXES[name].description}")
        for message in report.repair_errors:
            print_line(console, "failed", f"not fixed: {message}")
        console.print(f"{report.host}: {format_counts(row['verdict'] for row in report.findings)}")


def _finding_row(finding: Mapping[str, Any]) -> dict[str, Any]:
    source = f" [{finding['source']}]" if finding["source"] and finding["verdict"] in ("warning", "bad") else ""
    return {**finding, "evidence": f"{finding['evidence']}{source}"}


def _report_json(report: HostReport) -> dict[str, Any]:
    if report.error:
        return {"host": report.host, "error": report.error, "exit": int(report.exit)}
    return {
        "host": report.host,
        "findings": [{**finding, "repair": bool(finding["repair"])} for finding in report.findings],
        "fixed": report.repairs_made,
        "not_fixed": report.repair_errors,
        "bad": report.has_bad_findings,
        "budget": report.budget,
        "exit": int(report.exit),
    }
