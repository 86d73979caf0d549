"""Idle engines: one that polls keeps a core busy without a request, and heats the chip that the GPU shares."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.checks import power
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.host.memory import gpu_processes

NAME = "idle engine"
WINDOW_S = 0.5
#: fields 14 and 15 of /proc/PID/stat, counted after the name, which may hold spaces
USER, SYSTEM = 11, 12
MOST = 64


def check(host: Host) -> Iterator[Finding]:
    about, seen = known.IDLE_SPIN, power.figures(host)
    rows = host.printed(*gpu_processes.QUERY)
    listed = gpu_processes.parse(rows or "")
    pids = [str(process.pid) for process in listed.processes][:MOST]
    if rows is None or (listed.error and not pids):
        yield Finding(NAME, "unknown", "nvidia-smi lists no processes", source=about.source)
    elif not pids:
        yield Finding(NAME, "ok", "no process is on the GPU", source=about.source)
    elif seen is None or seen[0] > known.IDLE_PERCENT:
        busy = "its utilization is unknown" if seen is None else f"the GPU is {seen[0]:.0f} % busy"
        yield Finding(NAME, "unknown" if seen is None else "ok", f"not idle now: {busy}", source=about.source)
    else:
        yield _spinning(host, pids)


def _spinning(host: Host, pids: list[str]) -> Finding:
    about = known.IDLE_SPIN
    before = {pid: _ticks(host, pid) for pid in pids}
    began_s = time.monotonic()
    time.sleep(WINDOW_S)
    took_s = time.monotonic() - began_s
    shares = [
        (after - old) / os.sysconf("SC_CLK_TCK") / took_s
        for pid, old in before.items()
        if old is not None and (after := _ticks(host, pid)) is not None
    ]
    if not shares:
        return Finding(
            NAME, "unknown", "the processor time of the processes on the GPU is not readable", source=about.source
        )
    shown = f"{max(shares):.0%} of a core without a request on the GPU"
    if max(shares) > known.SPIN_SHARE:
        return Finding(
            NAME, "warning", f"{shown}: {about.says}", "invoke lint (names the flag, if there is one)", about.source
        )
    return Finding(NAME, "ok", shown, source=about.source)


def _ticks(host: Host, pid: str) -> int | None:
    """Return a process's processor time so far, clock ticks; None if it is gone or hidden."""
    fields = (host.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    try:
        return int(fields[USER]) + int(fields[SYSTEM])
    except (IndexError, ValueError):
        return None
