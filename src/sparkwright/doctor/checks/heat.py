"""The GPU's temperature and clock cap: is it throttled, and is the cap that was set still in effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.host import settings_table
from sparkwright.trust.bounds import number_of

NAME = "GPU heat"
QUERY = (
    "nvidia-smi",
    "--query-gpu=temperature.gpu,clocks.sm,clocks_event_reasons.hw_thermal_slowdown,clocks_event_reasons.sw_thermal_slowdown",
    "--format=csv,noheader,nounits",
)
SLOWED = "Active"


def cap_mhz(host: Host) -> int | None:
    """Return the clock cap that `provision` set; None for none."""
    found = re.search(settings_table.CAP, host.read(settings_table.PATHS[settings_table.CLOCK]) or "")
    return int(found[1]) if found else None


def check(host: Host) -> Iterator[Finding]:
    """Check the GPU's temperature and clock cap.

    A value that the driver does not report ("[N/A]") is not judged; without a temperature the result is unknown.
    """
    about, cap = known.HEAT, cap_mhz(host)
    cells = [word.strip() for word in (host.printed(*QUERY) or "").partition("\n")[0].split(",")]
    celsius, clock = (number_of(cell) for cell in (*cells, "")[:2])
    if celsius is None:
        yield Finding(NAME, "unknown", "nvidia-smi returned no temperature", source=about.source)
        return
    slowed = SLOWED in cells[2:]
    shown = f"{celsius:.0f} °C{', slowed down by heat' if slowed else ''}"
    shown += f", clock cap {cap} MHz" if cap else ", no clock cap"
    if cap and clock is not None and clock > cap + known.CAP_SLACK_MHZ:
        fix = f"sudo systemctl restart {settings_table.CLOCK_UNIT}"
        yield Finding(NAME, "warning", f"{shown}, which does not hold: it runs at {clock:.0f} MHz", fix, about.source)
    elif slowed or celsius > known.HOT_C:
        name = host.wanted.name or "HOST"
        lower = f"a lower clock_cap_mhz than {cap}" if cap else "clock_cap_mhz: 2000"
        fix = f"check fans and room; {lower} in its vars, then invoke provision --host {name}"
        yield Finding(NAME, "warning", f"{shown}: {about.says}", fix, about.source)
    else:
        yield Finding(NAME, "ok", shown, source=about.source)
