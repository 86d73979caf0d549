"""The bandwidth measurement of `cluster.check --bandwidth`.

It measures between each member and the next, over both halves of the port at the same time.
"""

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

#: perftest's default port; each further half uses the next port
FIRST_PORT = 18515
SECONDS = 4
#: least share of the nominal rate: both halves of a good port reached 92.6 and 97.3 of 200 Gb/s (NVIDIA dgx-spark-playbooks,
#: performance guide)
GOOD_SHARE = 0.875
#: a card that is throttled by firmware or power supply reaches 13 Gb/s although its link reports 200
DEGRADED_GBPS = 25.0
SOURCE = "NVIDIA dgx-spark-playbooks; reports of degraded cards in NVIDIA's developer forum"
DEGRADED_FIX = "power the host off and unplug it for a minute, then update the firmware of the card"


def findings(selection: Selection, members: Sequence[Links]) -> list[tuple[str, Finding]]:
    """Measure the bandwidth between each member and the next, and return the findings with the names of both hosts."""
    if sys.stderr.isatty():
        print(f"Measuring {count(len(members) - 1, 'link')}, {SECONDS} s each.", file=sys.stderr)
    selection.fleet.connect()
    try:
        return [(f"{links.host}, {other.host}", _pair(selection, links, other)) for links, other in pairwise(members)]
    finally:
        selection.fleet.close()


def judged(rates: Sequence[dict[str, Any]], nominal_gbps: float) -> Finding:
    """Return the finding about a link from the rates of its halves.

    Args:
        nominal_gbps: rate of the slower end, in Gbit/s; 0 if unknown.
    """
    why = {rate["error"]: [row["adapter"] for row in rates if row["error"] == rate["error"]] for rate in rates}
    errors = [f"{', '.join(adapters)}: {error}" for error, adapters in why.items() if error]
    if errors:
        fix = "sudo apt install perftest, on both hosts" if any("not installed" in error for error in errors) else ""
        return Finding("bandwidth", "unknown", "; ".join(errors), fix)
    total = sum(rate["gbps"] for rate in rates)
    halves = " + ".join(f"{rate['gbps']:.1f}" for rate in rates)
    shown = f"{halves} = {total:.0f} Gb/s" if len(rates) > 1 else f"{total:.0f} Gb/s"
    if total < DEGRADED_GBPS:
        return Finding("bandwidth", "bad", f"{shown}: the card is degraded", DEGRADED_FIX, SOURCE)
    if nominal_gbps and total < GOOD_SHARE * nominal_gbps:
        return Finding("bandwidth", "warning", f"{shown} of {nominal_gbps:.0f}", source=SOURCE)
    return Finding("bandwidth", "ok", f"{shown} of {nominal_gbps:.0f}" if nominal_gbps else shown)


def _pair(selection: Selection, links: Links, other: Links) -> Finding:
    """Measure from the first member to the second."""
    halves = list(zip(_halves(links), _halves(other), strict=False))
    if not halves:
        return Finding("bandwidth", "unknown", "no half of the port is up with an address on both hosts")
    ends = {
        links.host: ("send", [_end(mine, its, n) for n, (mine, its) in enumerate(halves)]),
        other.host: ("listen", [_end(its, mine, n) for n, (mine, its) in enumerate(halves)]),
    }
    rates: dict[str, list[dict[str, Any]]] = {}

    def measure(member: Member) -> None:
        role, mine = ends[member.host.name]
        found = ask_module(selection.fleet, member, "link_rate", {"role": role, "ends": mine, "seconds": SECONDS})
        rates[role] = found["rates"]

    selection.fleet.each([member for member in selection.fleet.members if member.host.name in ends], measure)
    errors = [f"{name}: {error.message}" for name, error in selection.fleet.errors().items() if name in ends]
    if errors:
        return Finding("bandwidth", "unknown", "; ".join(errors))
    receivers = {row["adapter"]: row for row in rates.get("listen", [])}
    sent = [
        _explained(row, receivers.get(its.adapter))
        for row, (_, its) in zip(rates.get("send", []), halves, strict=False)
    ]
    return judged(sent, min(_nominal(links), _nominal(other)))


def _halves(links: Links) -> list[Link]:
    return [link for link in links.in_use if link.active and link.addresses]


def _end(mine: Link, its: Link, number: int) -> dict[str, Any]:
    own, peer = (link.addresses[0].partition("/")[0] for link in (mine, its))
    return {"adapter": mine.adapter, "address": own, "peer": peer, "port": FIRST_PORT + number}


def _explained(sent: dict[str, Any], receiver: dict[str, Any] | None) -> dict[str, Any]:
    """Add the listener's error to the sender's, as only the listener knows why the sender could not connect."""
    why = receiver["error"] if receiver and sent["gbps"] is None else ""
    return {**sent, "error": f"{sent['error']}; {why}"} if why not in ("", sent["error"]) else sent


def _nominal(links: Links) -> float:
    """Return the rate of the port in Gbit/s. Its halves share it, and each reports all of it."""
    return max((link.rate_gbps for link in links.in_use), default=0.0)
