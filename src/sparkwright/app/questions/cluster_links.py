"""The `cluster.inspect` and `cluster.check` commands: query a cluster's hosts about their links and print the results."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from sparkwright.app.connect import Selection, choose, machines
from sparkwright.app.questions import link_rules
from sparkwright.app.questions.host_requests import FINDING, LINK, ask_module
from sparkwright.app.questions.link_rules import Links, findings, proposed
from sparkwright.console.events import tables
from sparkwright.console.events.live_lines import printed
from sparkwright.console.out import say, say_json, say_prose, width
from sparkwright.console.terminal import terminal
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.host import Finding
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.host.state import write_atomically
from sparkwright.project.inventory.groups import Fabric
from sparkwright.project.inventory.host import Host

COLUMNS = (
    *(("HOST", "host"), ("INTERFACE", "interface"), ("ADAPTER", "adapter"), ("STATE", "state"), ("RATE", "rate")),
    *(("MTU", "mtu"), ("ADDRESS", "address"), ("FIRMWARE", "firmware")),
)
FINDINGS = (("HOST", "host"), ("CHECK", "check"), ("VERDICT", "verdict"), ("EVIDENCE", "evidence"))


def inspect(pattern: str, *, write: bool, json: bool) -> list[Exit]:
    """Show the hosts' links and the `fabric` entry for their files.

    Args:
        write: add the entry to host files that lack it.
    """
    selection = machines(choose(pattern))
    members, codes = _ask(selection, peers=False, json=json)
    if json:
        for member in members:
            say_json(
                {"host": member.host, "links": [link.to_json() for link in member.links], "fabric": _json(member.used)}
            )
        return [*_written(selection, members, write=write, quiet=True), *codes]
    _table([_row(member.host, link) for member in members for link in member.links], COLUMNS)
    for member in members:
        if not member.links:
            say(f"{member.host}: no RDMA adapter.")
    return [*_written(selection, members, write=write, quiet=False), *codes]


def check(pattern: str, *, bandwidth: bool, json: bool) -> list[Exit]:
    """Compare the hosts' links and test the path in each direction. Return 1 for a problem that prevents a cluster from running.

    Args:
        bandwidth: also measure the links.
    """
    selection = machines(choose(pattern))
    if len(selection.hosts) < 2:
        cluster = next((host.cluster.name for host in selection.hosts if host.cluster), "pair")
        raise Refused("a cluster needs at least two hosts.", fix=f"Name its group: `--host {cluster}`.")
    members, codes = _ask(selection, peers=True, json=json)
    found = findings(members)
    rates = link_rules.bandwidth_findings(selection, members) if bandwidth else []
    found += rates
    bad = any(finding.verdict == "bad" for _, finding in found)
    if json:
        say_json({"findings": [{"host": host, **finding.to_json()} for host, finding in found], "bad": bad})
    elif found:
        _table([{"host": host or "all", **_shown(finding)} for host, finding in found], FINDINGS)
    else:
        say_prose(f"The links between {' and '.join(member.host for member in members)} are as a cluster needs them.")
    unmeasured = any(finding.verdict == "unknown" for _, finding in rates)
    return [Exit.FAILED if bad else Exit.INCONCLUSIVE if unmeasured else Exit.OK, *codes]


def _ask(selection: Selection, *, peers: bool, json: bool) -> tuple[list[Links], list[Exit]]:
    """Return the hosts' answers, and the exit codes of hosts that did not answer. Their errors are printed.

    Args:
        peers: have each host also test its path to the others.
    """
    fleet = selection.fleet
    fleet.connect()
    try:
        first = fleet.ask(lambda member: _asked(selection, member, []))
        if peers:
            ends = {name: links.used.address for name, links in first.items() if links.used}
            first = fleet.ask(
                lambda member: _asked(selection, member, [to for name, to in ends.items() if name != member.host.name])
            )
    finally:
        fleet.close()
    errors = fleet.errors()
    for name, error in errors.items():
        if json:
            say_json({"host": name, "error": error.message, "exit": int(error.exit)})
        else:
            say_prose(f"{name}: {error.message}")
    return [first[host.name] for host in selection.hosts if host.name in first], [
        error.exit for error in errors.values()
    ]


def _asked(selection: Selection, member: Member, peers: Sequence[str]) -> Links:
    sent_s = time.time()
    found = ask_module(selection.fleet, member, "fabric", {"peers": list(peers)})
    return replace(_links(member, found), ahead_s=(found["now_s"] - time.time(), found["now_s"] - sent_s))


def _links(member: Member, found: dict[str, Any]) -> Links:
    links = tuple(Link(**{name: _fixed(row[name]) for name in LINK}) for row in found["links"])
    rows = tuple(Finding(**{name: row[name] for name in FINDING}) for row in found["findings"])
    paths, host = tuple(found["paths"]), member.host
    return Links(host.name, links, rows, paths, found["kernel"], found["driver"], host.fabric)


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _written(selection: Selection, members: Sequence[Links], *, write: bool, quiet: bool) -> list[Exit]:
    """Print the `fabric` entries missing from host files, or write them. Return 2 for each host whose file still lacks one."""
    codes = []
    for member in members:
        text, host = _text(proposed(member.links)), selection.inventory.hosts[member.host]
        if member.given is not None or not text:
            continue
        if write:
            _add(selection, host, text)
        else:
            codes.append(Exit.CHANGES)
        if not quiet:
            say(f"\n{'added to' if write else 'for'} hosts/{member.host}.yml:\n{text}", end="")
    return codes


def _add(selection: Selection, host: Host, text: str) -> None:
    path = selection.project.root / "hosts" / f"{host.name}.yml"
    before = path.read_bytes()
    write_atomically(path, before + (b"" if before.endswith(b"\n") or not before else b"\n") + text.encode())


def _text(end: Fabric | None) -> str:
    if end is None:
        return ""
    adapters = f"\n  adapters: {_listed(end.adapters)}" if end.adapters else ""
    return f"fabric:\n  interfaces: {_listed(end.interfaces)}\n  address: {end.address}{adapters}\n"


def _listed(names: Sequence[str]) -> str:
    """Format a list in YAML, with quotes around names that YAML would not read as text (on, 1e5)."""
    return yaml.safe_dump(list(names), default_flow_style=True, width=math.inf).strip()


def _json(end: Fabric | None) -> dict[str, Any] | None:
    return {"interfaces": end.interfaces, "address": end.address, "adapters": end.hcas} if end else None


def _row(host: str, link: Link) -> dict[str, Any]:
    return {
        "host": host,
        "verdict": "ok" if link.active else "unknown",
        "interface": link.interface or "-",
        "adapter": link.adapter,
        "state": "up" if link.active else "down",
        "rate": f"{link.rate_gbps:.0f} Gb/s" if link.rate_gbps else "-",
        "mtu": str(link.mtu or "-"),
        "address": ", ".join(link.addresses) or "-",
        "firmware": link.firmware or "-",
    }


def _shown(finding: Finding) -> dict[str, Any]:
    source = f" [{finding.source}]" if finding.source else ""
    return {**finding.to_json(), "evidence": f"{finding.evidence}{source}"}


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    console = terminal()
    for style, text in tables.lines(list(rows), tuple(columns), width()):
        printed(console, style, text)
