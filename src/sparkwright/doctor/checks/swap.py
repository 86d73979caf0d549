"""Swap: how much of it is in use. Having swap is fine."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.units import gib

NAME = "swap"


def check(host: Host) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None or "SwapTotal" not in memory:
        yield Finding(NAME, "unknown", "no swap figures in /proc/meminfo", source=known.SWAP.source)
        return
    total, used = memory["SwapTotal"], memory["SwapTotal"] - memory.get("SwapFree", 0)
    if used > known.SWAP_USED_BYTES:
        evidence = f"{gib(used)} of {gib(total)} GiB in use: {known.SWAP.says}"
        fix = f"invoke restart --host {host.wanted.name or 'HOST'}"
        yield Finding(NAME, "warning", evidence, fix, known.SWAP.source)
    else:
        shown = f"{gib(used)} of {gib(total)} GiB in use" if total else "none"
        yield Finding(NAME, "ok", shown, source=known.SWAP.source)
