"""`invoke runtime.fetch`: what a first deploy needs from the internet, fetched beforehand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from invoke.tasks import task

from sparkwright.app.outcome import reporting
from sparkwright.console.out import say

QUIET_S = 2.0


@task(
    help={
        "machine": "the processors of the hosts, as `uname -m` prints them: aarch64 (default) or aarch64,x86_64",
        "python": "their Python: 3.12 (default, DGX OS 7) or 3.11,3.12",
        "debug": "show the traceback",
    }
)
@reporting
def fetch(context: object, machine: str = "aarch64", python: str = "3.12", debug: bool = False) -> int:
    """Fill this laptop's cache with the runtime for hosts, so that a first deploy needs no internet."""
    from sparkwright import units
    from sparkwright.errors import Refused
    from sparkwright.remote import bootstrap, wheels

    wanted = [(one, version) for one in _words(machine) for version in _words(python)]
    for one, version in wanted:
        if one not in bootstrap.MACHINES:
            raise Refused(f"--machine must be one of {', '.join(bootstrap.MACHINES)}, got '{one}'.")
        if version not in wheels.PYTHONS:
            raise Refused(f"--python must be one of {', '.join(wheels.PYTHONS)}, got '{version}'.")
    if not wanted:
        raise Refused("say for which processor and Python: --machine aarch64 --python 3.12.")
    for one, version in wanted:
        there, started_s = wheels.here(version, one), time.monotonic()
        found = wheels.fetched(version, one, _progress(f"{one}, Python {version}"))
        size = units.size(sum(path.stat().st_size for path in found))
        how = "in the cache already" if there else f"fetched in {units.duration(time.monotonic() - started_s)}"
        print(f"{one}, Python {version}: {len(found)} wheels, {size}, {how}; every hash is right.")
    return 0


def _words(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _progress(what: str) -> Callable[[int, int, str], None]:
    """Tells every two seconds which wheel is being fetched; nothing when it is over sooner."""
    said_s = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        nonlocal said_s
        if name and time.monotonic() - said_s >= QUIET_S:
            said_s = time.monotonic()
            say(f"{what}: wheel {done + 1} of {total}, {name}", file=sys.stderr)

    return progress


TASKS = (fetch,)
