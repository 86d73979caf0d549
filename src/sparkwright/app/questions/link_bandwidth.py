"""What `cluster.check --bandwidth` measures: each member and the next, both halves of the port at the same time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.questions.link_rules import Links
from sparkwright.app.questions.one_module import ask_module
from sparkwright.doctor.fabric import Link
from sparkwright.doctor.findings import Finding
from sparkwright.fleet.member import Member
from sparkwright.visible import count

#: perftest's own default, and one for each further half
FIRST_PORT = 18515
SECONDS = 4
#: both halves of a good port gave 92.6 and 97.3 of 200 Gb/s: NVIDIA dgx-spark-playbooks, performance guide
GOOD_SHARE = 0.875
#: a card that the firmware or the power supply holds back gives 13 Gb/s behind a green link of 200
DEGRADED_GBPS = 25.0
SOURCE = "NVIDIA dgx-spark-playbooks; reports of degraded cards in NVIDIA's developer forum"
DEGRADED_FIX = "power the host off and unplug it for a minute, then update the firmware of the card"


def findings(chosen: Selection, members: Sequence[Links]) -> list[tuple[str, Finding]]:
    """What was measured between each member and the next, with the hosts that it is about."""
    if sys.stderr.isatty():
        print(f"Measuring {count(len(members) - 1, 'link')}, {SECONDS} s each.", file=sys.stderr)
    chosen.fleet.connect()
    try:
        return [(f"{one.host}, {other.host}", _pair(chosen, one, other)) for one, other in pairwise(members)]
    finally:
        chosen.fleet.close()


def judged(rates: Sequence[dict[str, Any]], nominal_gbps: float) -> Finding:
    """What the rates of the halves say of the link. nominal_gbps: what the slower end shows; 0: unknown."""
    why = {one["error"]: [row["adapter"] for row in rates if row["error"] == one["error"]] for one in rates}
    errors = [f"{', '.join(adapters)}: {error}" for error, adapters in why.items() if error]
    if errors:
        fix = "sudo apt install perftest, on both hosts" if any("not installed" in one for one in errors) else ""
        return Finding("bandwidth", "unknown", "; ".join(errors), fix)
    total = sum(one["gbps"] for one in rates)
    halves = " + ".join(f"{one['gbps']:.1f}" for one in rates)
    shown = f"{halves} = {total:.0f} Gb/s" if len(rates) > 1 else f"{total:.0f} Gb/s"
    if total < DEGRADED_GBPS:
        return Finding("bandwidth", "bad", f"{shown}: the card is degraded", DEGRADED_FIX, SOURCE)
    if nominal_gbps and total < GOOD_SHARE * nominal_gbps:
        return Finding("bandwidth", "warning", f"{shown} of {nominal_gbps:.0f}", source=SOURCE)
    return Finding("bandwidth", "ok", f"{shown} of {nominal_gbps:.0f}" if nominal_gbps else shown)


def _pair(chosen: Selection, one: Links, other: Links) -> Finding:
    """The first writes to the second."""
    halves = list(zip(_halves(one), _halves(other), strict=False))
    if not halves:
        return Finding("bandwidth", "unknown", "no half of the port is up with an address on both hosts")
    ends = {
        one.host: ("send", [_end(mine, its, n) for n, (mine, its) in enumerate(halves)]),
        other.host: ("listen", [_end(its, mine, n) for n, (mine, its) in enumerate(halves)]),
    }
    rates: dict[str, list[dict[str, Any]]] = {}

    def measure(member: Member) -> None:
        role, mine = ends[member.host.name]
        found = ask_module(chosen.fleet, member, "link_rate", {"role": role, "ends": mine, "seconds": SECONDS})
        rates[role] = found["rates"]

    chosen.fleet.each([member for member in chosen.fleet.members if member.host.name in ends], measure)
    errors = [f"{name}: {error.message}" for name, error in chosen.fleet.errors().items() if name in ends]
    if errors:
        return Finding("bandwidth", "unknown", "; ".join(errors))
    heard = {row["adapter"]: row for row in rates.get("listen", [])}
    sent = [
        _explained(row, heard.get(its.adapter)) for row, (_, its) in zip(rates.get("send", []), halves, strict=False)
    ]
    return judged(sent, min(_nominal(one), _nominal(other)))


def _halves(one: Links) -> list[Link]:
    return [link for link in one.in_use if link.active and link.addresses]


def _end(mine: Link, its: Link, number: int) -> dict[str, Any]:
    own, peer = (link.addresses[0].partition("/")[0] for link in (mine, its))
    return {"adapter": mine.adapter, "address": own, "peer": peer, "port": FIRST_PORT + number}


def _explained(sent: dict[str, Any], heard: dict[str, Any] | None) -> dict[str, Any]:
    """Why the sender could not connect, the listener knows better."""
    why = heard["error"] if heard and sent["gbps"] is None else ""
    return {**sent, "error": f"{sent['error']}; {why}"} if why not in ("", sent["error"]) else sent


def _nominal(one: Links) -> float:
    """Of the port; its halves share it, and each shows all of it."""
    return max((link.rate_gbps for link in one.in_use), default=0.0)
