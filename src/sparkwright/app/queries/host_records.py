"""The `history`, `incident`, `unlock`, `report` and `hosts.list` commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import html, units
from sparkwright.app.connect import Selection, select_hosts, select_machines
from sparkwright.app.queries import host_requests
from sparkwright.app.queries.host_requests import report_host_error, request_events
from sparkwright.console import grid
from sparkwright.console.command_output import print_error, print_json_line, print_prose, print_text
from sparkwright.console.rows import HostInfo, Report
from sparkwright.engines.log import state
from sparkwright.errors import Exit, Failed, Refused, SparkwrightError
from sparkwright.fleet.member import close_links
from sparkwright.host.state import write_atomically
from sparkwright.measure import workload
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.trust import private
from sparkwright.trust.bounds import MAX_JSON_VALUES, parse_json, sanitize
from sparkwright.trust.shapes import line, moment, validate
from sparkwright.visible import format_count

HOST_COLUMNS = grid.columns(("HOST", 0), ("ADDRESS", 0), ("GROUPS", 1), ("RECIPE", 0))


def history(pattern: str, max_entries: int, *, json: bool) -> list[int]:
    """Print the `max_entries` newest history entries of each server, the newest of all first, and return the exit codes."""
    answers, codes, titles = _query_hosts(pattern, {"verb": "history"}, json=json)
    rows: list[tuple[float, str, dict[str, Any]]] = []
    for host, events in answers.items():
        with report_host_error(host, codes, json=json):
            entries = history_entries(events, max_entries)
            for entry in entries:
                title = f"{host} ({entry['cluster']})" if entry.get("cluster") else host
                rows.append((entry["at"], "\n".join(_format_entry(title, entry)), {**entry, "host": host}))
            if not entries and not json:
                print_prose(f"{titles[host]}: no history yet")
    for _, text, row in sorted(rows, key=lambda item: item[0], reverse=True):
        if json:
            print_json_line(row)
        else:
            print_prose(text)
    return codes


def history_entries(events: list[Event], max_entries: int) -> list[dict[str, Any]]:
    """Return the newest entries of the history in a host's answer, newest first."""
    entries = [event for event in events if event["event"] == "history"][:max_entries]
    return [{name: value for name, value in entry.items() if name not in ("event", "time")} for entry in entries]


def incident(pattern: str, run: str, output_folder: str, *, json: bool) -> list[int]:
    """Write each host's incident bundle to a folder and return the exit codes.

    Args:
        run: id of the failed run; if empty, the last incident.
        output_folder: the folder, with a subfolder per host if there are several; empty for incidents/HOST/RUN.
    """
    answers, codes, titles = _query_hosts(pattern, {"verb": "incident", "run": run}, json=json)
    for host, events in answers.items():
        with report_host_error(host, codes, json=json):
            incident_id, files = parse_incident(host, events, run)
            folder = Path(output_folder) if output_folder else Path("incidents") / host / incident_id
            folder = folder / host if output_folder and len(answers) > 1 else folder
            private.write_files(folder, files)
            if json:
                print_json_line({"host": host, "incident": incident_id, "folder": str(folder), "files": sorted(files)})
                continue
            prefix = f"{titles[host]}: " if titles[host] != host else ""
            print_text(f"{prefix}{folder}: {', '.join(sorted(files))}")
            print_text(_describe_incident(files.get("about.json", "")), end="")
    return codes


def parse_incident(host: str, events: list[Event], run: str) -> tuple[str, dict[str, str]]:
    """Return the incident's id and files. Raises Failed if the answer is not one bundle, or not that of the requested run."""
    files = [event for event in events if event["event"] == "file"]
    unexpected_event = next((event for event in events if event["event"] == "raw"), None)
    if unexpected_event is not None:
        raise Failed(f"unexpected output in the answer: {unexpected_event['text']:.200}", where=host)
    incident_ids = {file["incident"] for file in files}
    if len(incident_ids) != 1 or (run and run not in incident_ids):
        raise Failed(f"the answer is not the bundle of {run or 'one incident'}.", where=host)
    return incident_ids.pop(), {file["name"]: file["text"] for file in files}


def _describe_incident(about_json: str) -> str:
    """Return an incident's time and reason as one line; empty if about.json is missing or invalid."""
    try:
        about = sanitize(parse_json(about_json, max_values=MAX_JSON_VALUES))
        fields = validate(about, {"time": moment, "why": line}, "about.json")
    except ValueError:
        return ""
    return f"  {units.format_time(fields['time'])}  {fields['why']}\n"


def unlock(host: str, choose_action: Callable[[dict[str, Any], str], str]) -> int:
    """Release a host's lock, or report that it is free.

    Args:
        choose_action: shows the lock's owner to the user, given the `lock` event and the host's name, and returns `stop`, `kill`
            or `forget`; empty to leave the lock alone.
    """
    selection = select_machines(select_hosts(host))
    if len(selection.hosts) != 1:
        raise Refused("`unlock` takes one host at a time.")
    fleet, member = selection.fleet, selection.fleet.members[0]
    try:
        events = request_events(fleet, member, {"verb": "lock"})
        lock_event = next((event for event in events if event["event"] == "lock"), None)
        if lock_event is None:
            raise Failed("the host did not report who holds its lock.", where=member.host.name)
        if lock_event["owner"] is None:
            print_text(f"{member.host.name}: the lock is free")
            return Exit.OK
        action = choose_action(lock_event, member.host.name)
        if not action:
            print_text("unchanged")
            return Exit.OK
        header = {"verb": "unlock", "how": action, "run": lock_event["owner"]["run"]}
        for event in request_events(fleet, member, header):
            print_prose(event.get("text", ""))
    finally:
        fleet.close()
    return Exit.OK


def _query_hosts(
    pattern: str, header: dict[str, Any], *, json: bool
) -> tuple[dict[str, list[Event]], list[int], dict[str, str]]:
    """Return the events by host name, the exit codes, and the titles by host name. Prints the errors of hosts."""
    selection = select_hosts(pattern)
    answers = query_events(selection, header)
    for name, error in selection.fleet.errors().items():
        print_error(error, json=json, host=name)
    return answers, selection.fleet.exit_codes(), {host.name: host.title for host in selection.hosts}


def query_events(selection: Selection, header: dict[str, Any]) -> dict[str, list[Event]]:
    """Return the events that answer a request, by host name. Errors are in `selection.fleet.errors()`. Closes the connections."""
    return selection.fleet.query_all(lambda member: request_events(selection.fleet, member, header))


def _format_change(change: Mapping[str, Any]) -> str:
    """Format a changed field with both values. For a gateway's files, only the fact that they changed is stored."""
    before, after = change["before"], change["after"]
    values = f"{before} -> {after}" if (before, after) != (None, None) else "changed"
    return f"{change['field']}: {values}"


def _format_entry(title: str, entry: Event) -> list[str]:
    time_text = units.format_time(entry["at"])
    measured = entry.get("measured") or {}
    figures = ", ".join(f"{value} {name}" for name, value in measured.items() if isinstance(value, int | float | str))
    stages = measured.get("load_s")
    load_stages = state.format_stages(stages) if isinstance(stages, dict) else ""
    lines = [f"{time_text}  {title}  {entry['what']}  by {entry.get('who') or 'unknown'}  (run {entry.get('run')})"]
    lines += [f"    {_format_change(change)}" for change in entry.get("changed") or ()]
    lines += [f"    {entry['image']}"] if entry.get("image") else []
    lines += [f"    {entry['model']} @ {entry['commit']}"] if entry.get("model") else []
    lines += [f"    measured: {figures}"] if figures else []
    lines += [f"    load: {load_stages}"] if load_stages else []
    load_test = workload.format_last_step(measured.get("load"))
    lines += [f"    {load_test}"] if load_test else []
    memory = _describe_memory(entry.get("memory") or {})
    lines += [f"    memory: {memory}"] if memory else []
    return lines + ([f"    why: {entry['why']}"] if entry.get("why") else [])


def _describe_memory(start: Mapping[str, Any]) -> str:
    """Describe the memory that was available during a verified start; empty if it was not recorded."""
    lowest_gib, after_gib, host_gib = (
        _format_gib(start.get(name)) for name in ("lowest_bytes", "after_bytes", "host_bytes")
    )
    if not (lowest_gib and after_gib):
        return ""
    page_cache = "cold" if start.get("cold") else "warm"
    host_side = f"; {host_gib} GiB on the host's side" if host_gib else ""
    return f"lowest {lowest_gib} GiB available during the start ({page_cache}), {after_gib} after it{host_side}"


def _format_gib(size_bytes: object) -> str:
    return (
        units.format_gib(size_bytes) if isinstance(size_bytes, int | float) and not isinstance(size_bytes, bool) else ""
    )


def write_report(selection: Selection, period: str, output_path: str, *, json: bool) -> list[int]:
    """Write a page about the hosts' checks and return the exit codes.

    Args:
        period: length of the period, for example 7d.
        output_path: path of the page, which is not written with `json`.
    """
    span_s = units.parse_duration(period, "--since", min_s=60)
    until_s = time.time()
    since_s = until_s - span_s
    hosts = query_reports(selection, since_s, until_s)
    if json:
        for row in map(report_row, hosts):
            fields = asdict(row)
            names = fields if row.error else ("host", "span_s", "checks", "spans")
            print_json_line({name: fields[name] for name in names})
    else:
        path = Path(output_path)
        try:
            write_atomically(path, html.render_hosts_page(hosts, since_s, until_s).encode(), mode=0o644)
        except OSError as error:
            raise Refused(f"can't be written: {error.strerror}.", where=str(path)) from None
        check_count_text = format_count(sum(len(host.checks) for host in hosts), "check")
        print_text(f"{path}: {format_count(len(hosts), 'host')}, {check_count_text}")
        for host in hosts:
            if host.error:
                print_prose(f"{host.name}: {host.error}")
    return [host.error_exit for host in hosts]


def report_row(host: html.HostChecks) -> Report:
    """Return the summary of a host's checks."""
    if host.error:
        return Report(host.name, host.span_s, 0, error=host.error, exit=Exit(host.error_exit))
    return Report(host.name, host.span_s, len(host.checks), tuple(asdict(span) for span in host.spans))


def query_reports(selection: Selection, since_s: float, until_s: float) -> list[html.HostChecks]:
    """Return the checks of every host in a period, or an error for a host that can't be queried."""
    members = selection.fleet.members
    try:
        answers = host_requests.query_members(members, lambda member: {"verb": "checks", "since_s": since_s}, "checks")
    finally:
        close_links(members)
    return [
        _parse_report(member.host.name, answer, since_s, until_s)
        for member, answer in zip(members, answers, strict=True)
    ]


def _parse_report(name: str, answer: host_requests.Answer, since_s: float, until_s: float) -> html.HostChecks:
    host = host_requests.parse_answer(answer, lambda event: html.parse_host_checks(name, event, since_s, until_s))
    if isinstance(host, SparkwrightError):
        return html.HostChecks(name, since_s, until_s, error=str(host), error_exit=int(host.exit))
    return host


def inventory_row(host: Host) -> HostInfo:
    """Return a host's row for `hosts.list`."""
    return HostInfo(host.name, host.connection, host.address, tuple(host.groups), host.recipe)


def print_host_list(hosts: Sequence[Host], *, json: bool) -> None:
    """Print one line per host: name, address with its user and port, groups, recipe."""
    rows = list(map(inventory_row, hosts))
    if json:
        for row in rows:
            print_json_line(asdict(row))
        return
    cells = []
    for host, row in zip(hosts, rows, strict=True):
        address = f"ssh {_format_login(host)}" if row.connection == "ssh" else row.connection
        cells.append((row.host, address, ",".join(row.groups), row.recipe or "-"))
    grid.print_table(HOST_COLUMNS, cells)


def _format_login(host: Host) -> str:
    """Return [USER@]ADDRESS[:PORT], with the user and the port that the project's files set."""
    address = f"[{host.address}]" if host.port and ":" in host.address else host.address
    return (f"{host.user}@" if host.user else "") + address + (f":{host.port}" if host.port else "")
