"""The GPU's power: a Spark that is stuck in a low-power state is busy and slow, and reports no error."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.trust.bounds import number_of

NAME = "GPU power"
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,clocks.sm,power.draw", "--format=csv,noheader,nounits")


def figures(host: Host) -> tuple[float, float, float] | None:
    """Return utilization in percent, SM clock in MHz, power in watts; None if one of them is not known."""
    rows = (host.printed(*QUERY) or "").splitlines()
    found = [number_of(word.strip()) for word in rows[0].split(",")] if rows else []
    match found:
        case [float(used), float(clock), float(power)]:
            return used, clock, power
    return None


def check(host: Host) -> Iterator[Finding]:
    about, seen = known.LOW_POWER, figures(host)
    if seen is None:
        yield Finding(NAME, "unknown", "nvidia-smi returned no utilization, clock and power", source=about.source)
        return
    used, clock, power = seen
    shown = f"{used:.0f} % busy at {clock:.0f} MHz and {power:.0f} W"
    if used > known.BUSY_PERCENT and clock < known.LOW_CLOCK_MHZ and power < known.LOW_POWER_W:
        fix = "shut down, unplug the power supply for a minute, and start again; a restart does not help"
        yield Finding(NAME, "bad", f"{shown}: {about.says}", fix, about.source)
    else:
        yield Finding(NAME, "ok", shown, source=about.source)
