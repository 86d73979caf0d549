"""The `runtime.fetch` command: download in advance what a first deploy needs from the internet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from sparkwright import units
from sparkwright.console.out import say
from sparkwright.errors import Refused
from sparkwright.remote import runtime
from sparkwright.visible import listed

QUIET_S = 2.0


def fetch(machines: str, pythons: str) -> None:
    """Download the wheels. Raises Refused for an unknown processor or Python version.

    Args:
        machines: processors, separated by commas.
        pythons: versions of Python, separated by commas.
    """
    wanted = [(machine, version) for machine in listed(machines) for version in listed(pythons)]
    for machine, version in wanted:
        if machine not in runtime.MACHINES:
            raise Refused(f"--machine must be one of {', '.join(runtime.MACHINES)}, got '{machine}'.")
        if version not in runtime.PYTHONS:
            raise Refused(f"--python must be one of {', '.join(runtime.PYTHONS)}, got '{version}'.")
    if not wanted:
        raise Refused("say for which processor and Python: --machine aarch64 --python 3.12.")
    for machine, version in wanted:
        cached, started_s = runtime.here(version, machine), time.monotonic()
        found = runtime.fetched(version, machine, _progress(f"{machine}, Python {version}"))
        size = units.size(sum(path.stat().st_size for path in found))
        how = "already cached" if cached else f"downloaded in {units.duration(time.monotonic() - started_s)}"
        print(f"{machine}, Python {version}: {len(found)} wheels, {size}, {how}; hashes verified.")


def _progress(what: str) -> Callable[[int, int, str], None]:
    """Return a callback that prints the current wheel every two seconds; a shorter download prints nothing."""
    printed_s = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        nonlocal printed_s
        if name and time.monotonic() - printed_s >= QUIET_S:
            printed_s = time.monotonic()
            say(f"{what}: wheel {done + 1} of {total}, {name}", file=sys.stderr)

    return progress
