"""The clock: that it is synchronized, and (compared on the laptop) that it agrees with the laptop's."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding, Verdict
from sparkwright.doctor.fixes import FIXES
from sparkwright.doctor.host import Host

NAME = "clock"
BESIDE = "clock beside the laptop's"
SYNCHRONIZED = "/run/systemd/timesync/synchronized"


def check(host: Host) -> Iterator[Finding]:
    source, fix = known.CLOCK.source, FIXES["clock"].manual_command(host.user)
    if host.there(SYNCHRONIZED):
        yield Finding(NAME, "ok", "set by systemd-timesyncd", source=source)
        return
    shown = host.printed("timedatectl", "show", "-p", "NTP", "-p", "NTPSynchronized") or ""
    fields = dict(line.partition("=")[::2] for line in shown.splitlines())
    if fields.get("NTPSynchronized") == "yes":
        yield Finding(NAME, "ok", "synchronized", source=source)
    elif fields.get("NTP") == "no":
        yield Finding(NAME, "warning", "not synchronized: NTP is off", fix, source, "clock")
    elif fields:
        yield Finding(NAME, "warning", "NTP is on but has not synchronized yet", "timedatectl timesync-status", source)
    else:
        yield Finding(NAME, "unknown", "synchronization status unknown", "timedatectl", source)


def against(host_s: float, laptop_s: float, user: str) -> Finding:
    """Compare the host's clock with the laptop's, both seconds since the epoch at the same moment.

    It does not decide which is right.
    """
    off_s, source = host_s - laptop_s, known.CLOCK.source
    if abs(off_s) <= known.CLOCK_WARNING_S:
        return Finding(BESIDE, "ok", "in sync", source=source)
    verdict: Verdict = "bad" if abs(off_s) > known.CLOCK_BAD_S else "warning"
    shown = f"{abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} the laptop's: {known.CLOCK.says}"
    return Finding(BESIDE, verdict, shown, FIXES["clock"].manual_command(user), source)
