"""Candidate hosts for a new project, from all sources at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkwright.remote.find import mdns, ssh_names

#: default and common names of a GB10: spark-1a2b, dgx1, gx10-3f, promaxgb10-77, aitopatom-9c
LIKELY = re.compile(r"spark|dgx|gx10|gb10|aitop|thinkstation-pgx|edgexpert|veriton", re.I)
CONFIG, KNOWN, NETWORK = "ssh configuration", "known_hosts", "mDNS"
#: candidates shown at most
MOST = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that was found."""

    #: as ssh takes it
    address: str
    #: where it was found
    source: str


def find(ssh_folder: Path, network: Callable[[], Sequence[str]] = mdns.hosts) -> list[Candidate]:
    """Return the hosts of the user's ssh files and the local network, those with a Spark's name first, in two seconds at most.

    Of known_hosts only those with a Spark's name or of the local network count: the others may be any machine. ssh_folder:
    ~/.ssh.
    """
    with ThreadPoolExecutor(max_workers=3) as at_once:
        config = at_once.submit(ssh_names.of_config, ssh_folder / "config")
        known = at_once.submit(ssh_names.of_known_hosts, ssh_folder / "known_hosts")
        near = at_once.submit(network)
    rows = [Candidate(name, CONFIG) for name in config.result()]
    rows += [Candidate(name, NETWORK) for name in near.result()]
    rows += [Candidate(name, KNOWN) for name in known.result() if LIKELY.search(name) or name.endswith(".local")]
    first: dict[str, Candidate] = {}
    for candidate in rows:
        first.setdefault(candidate.address.lower(), candidate)
    return sorted(first.values(), key=lambda candidate: not LIKELY.search(candidate.address))
