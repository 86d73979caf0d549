"""The `cluster.inspect` and `cluster.check` commands: show and check the links between hosts."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from sparkwright.app.connect import Selection, select_hosts, select_machines
from sparkwright.app.queries import link_rules
from sparkwright.app.queries.host_requests import FINDING_SHAPE, LINK_SHAPE, query_module
from sparkwright.app.queries.link_rules import HostLinks, check_links, propose_fabric
from sparkwright.console import grid
from sparkwright.console.command_output import print_error, print_json_line, print_prose, print_text, terminal_width
from sparkwright.console.events import tables
from sparkwright.console.events.live_lines import print_line
from sparkwright.console.terminal import build_console
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.host.state import write_atomically
from sparkwright.project.inventory.groups import Fabric
from sparkwright.project.inventory.host import Host

LINK_COLUMNS = grid.columns(
    *(("HOST", 0), ("INTERFACE", 0), ("ADAPTER", 4), ("STATE", 0), ("RATE", 3), ("MTU", 2), ("ADDRESS", 0)),
    *(("FIRMWARE", 5), ("", 0)),
)
FINDING_COLUMNS = (("HOST", "host"), ("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))


def inspect(pattern: str, *, write: bool, json: bool) -> list[Exit]:
    """Show the hosts' links, and the `fabric` entries that their files lack. With `write`, add the entries."""
    selection = select_machines(select_hosts(pattern))
    members, codes = _query_hosts(selection, peers=False, json=json)
    if json:
        for member in members:
            print_json_line(
                {
                    "host": member.host,
                    "links": [link.to_json() for link in member.links],
                    "fabric": _fabric_json(member.used_fabric),
                }
            )
        return [*_write_fabric_entries(selection, members, write=write, quiet=True), *codes]
    grid.print_table(LINK_COLUMNS, [_link_cells(member.host, link) for member in members for link in member.links])
    for member in members:
        if not member.links:
            print_text(f"{member.host}: no RDMA adapter.")
    return [*_write_fabric_entries(selection, members, write=write, quiet=False), *codes]


def check(pattern: str, *, bandwidth: bool, json: bool) -> list[Exit]:
    """Compare the hosts' links and test the paths between them. The exit code is 1 for a problem that breaks a cluster.

    Args:
        bandwidth: also measure the bandwidth. The exit code is 4 if that was not possible.
    """
    selection = select_machines(select_hosts(pattern))
    if len(selection.hosts) < 2:
        cluster = next((host.cluster.name for host in selection.hosts if host.cluster), "pair")
        raise Refused("a cluster needs at least two hosts.", fix=f"Name its group: `--host {cluster}`.")
    members, codes = _query_hosts(selection, peers=True, json=json)
    problems = check_links(members)
    bandwidth_findings = link_rules.measure_bandwidth(selection, members) if bandwidth else []
    problems += bandwidth_findings
    has_errors = any(finding.verdict == "bad" for _, finding in problems)
    if json:
        print_json_line(
            {"findings": [{"host": host, **finding.to_json()} for host, finding in problems], "bad": has_errors}
        )
    elif problems:
        _print_findings([{"host": host or "all", **_finding_row(finding)} for host, finding in problems])
    else:
        print_prose(f"The links between {' and '.join(member.host for member in members)} are ready for a cluster.")
    has_unmeasured_links = any(finding.verdict == "unknown" for _, finding in bandwidth_findings)
    return [Exit.FAILED if has_errors else Exit.INCONCLUSIVE if has_unmeasured_links else Exit.OK, *codes]


def _query_hosts(selection: Selection, *, peers: bool, json: bool) -> tuple[list[HostLinks], list[Exit]]:
    """Return the hosts' links, and the exit codes of hosts that could not be queried. Prints the errors.

    Args:
        peers: also test the path from each host to each of the others.
    """
    fleet = selection.fleet
    fleet.connect()
    try:
        links_by_host = fleet.query_all(lambda member: _query_host(selection, member, []))
        if peers:
            addresses = {name: links.used_fabric.address for name, links in links_by_host.items() if links.used_fabric}

            def query_with_peers(member: Member) -> HostLinks:
                peer_addresses = [address for name, address in addresses.items() if name != member.host.name]
                return _query_host(selection, member, peer_addresses)

            links_by_host = fleet.query_all(query_with_peers)
    finally:
        fleet.close()
    errors = fleet.errors()
    for name, error in errors.items():
        print_error(error, json=json, host=name)
    return [links_by_host[host.name] for host in selection.hosts if host.name in links_by_host], [
        error.exit for error in errors.values()
    ]


def _query_host(selection: Selection, member: Member, peer_addresses: list[str]) -> HostLinks:
    sent_s = time.time()
    answer = query_module(selection.fleet, member, "fabric", {"peers": peer_addresses})
    return replace(
        _parse_links(member, answer), clock_ahead_bounds_s=(answer["now_s"] - time.time(), answer["now_s"] - sent_s)
    )


def _parse_links(member: Member, answer: dict[str, Any]) -> HostLinks:
    links = tuple(Link(**{name: _to_tuple(row[name]) for name in LINK_SHAPE}) for row in answer["links"])
    host_findings = tuple(Finding(**{name: row[name] for name in FINDING_SHAPE}) for row in answer["findings"])
    paths, host = tuple(answer["paths"]), member.host
    return HostLinks(host.name, links, host_findings, paths, answer["kernel"], answer["driver"], host.fabric)


def _to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _write_fabric_entries(
    selection: Selection, members: Sequence[HostLinks], *, write: bool, quiet: bool
) -> list[Exit]:
    """Print the `fabric` entries that host files lack, or add them. Returns CHANGES for each file that still lacks one."""
    codes = []
    for member in members:
        text, host = _fabric_yaml(propose_fabric(member.links)), selection.inventory.hosts[member.host]
        if member.declared_fabric is not None or not text:
            continue
        if write:
            _append_to_host_file(selection, host, text)
        else:
            codes.append(Exit.CHANGES)
        if not quiet:
            print_text(f"\n{'added to' if write else 'for'} hosts/{member.host}.yml:\n{text}", end="")
    return codes


def _append_to_host_file(selection: Selection, host: Host, text: str) -> None:
    path = selection.project.root / "hosts" / f"{host.name}.yml"
    content = path.read_bytes()
    write_atomically(path, content + (b"" if content.endswith(b"\n") or not content else b"\n") + text.encode())


def _fabric_yaml(fabric: Fabric | None) -> str:
    if fabric is None:
        return ""
    adapters = f"\n  adapters: {_format_yaml_list(fabric.adapters)}" if fabric.adapters else ""
    return f"fabric:\n  interfaces: {_format_yaml_list(fabric.interfaces)}\n  address: {fabric.address}{adapters}\n"


def _format_yaml_list(names: Sequence[str]) -> str:
    """Format a list in YAML, with quotes around names that YAML parses as other types, such as `on` and `1e5`."""
    return yaml.safe_dump(list(names), default_flow_style=True, width=math.inf).strip()


def _fabric_json(fabric: Fabric | None) -> dict[str, Any] | None:
    return {"interfaces": fabric.interfaces, "address": fabric.address, "adapters": fabric.hcas} if fabric else None


def _link_cells(host: str, link: Link) -> list[str]:
    rate = f"{link.rate_gbps:.0f} Gb/s" if link.rate_gbps else "-"
    state, addresses = "up" if link.active else "down", ", ".join(link.addresses)
    cells = [link.interface, link.adapter, state, rate, str(link.mtu or "-"), addresses, link.firmware]
    return [host, *(cell or "-" for cell in cells), ""]


def _finding_row(finding: Finding) -> dict[str, Any]:
    source = f" [{finding.source}]" if finding.source else ""
    return {**finding.to_json(), "evidence": f"{finding.evidence}{source}"}


def _print_findings(rows: Sequence[dict[str, Any]]) -> None:
    console = build_console()
    for style, text in tables.format_table(list(rows), FINDING_COLUMNS, terminal_width()):
        print_line(console, style, text)
