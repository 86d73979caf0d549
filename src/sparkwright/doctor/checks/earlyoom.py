"""The process that kills others before memory runs out, and the risk that it kills the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.units import gib

NAME = "earlyoom"
CONFIG = "/etc/default/earlyoom"


def check(host: Host) -> Iterator[Finding]:
    source = known.EARLYOOM.source
    running = host.processes("earlyoom")
    memory = host.memory()
    if not running:
        seen = host.read("/proc/1/comm") is not None  # a /proc that hides others' processes hides init too
        words = "earlyoom is not running" if seen else "cannot list processes"
        yield Finding(NAME, "ok" if seen else "unknown", words, source=source)
    elif memory is None:
        yield Finding(NAME, "unknown", "it is running, but /proc/meminfo is not readable", source=source)
    elif (limit := threshold_bytes(running[0][1:], memory["MemTotal"])) is None:
        yield Finding(NAME, "unknown", f"cannot parse its options: {' '.join(running[0])}", f"cat {CONFIG}", source)
    else:
        yield _against(host, limit, memory["MemTotal"])


def threshold_bytes(words: Sequence[str], total: int) -> int | None:
    """Return the available memory below which it acts, bytes; None if its options can't be parsed. -m PERCENT, -M KiB."""
    value, kind = "", "-m"
    for at, word in enumerate(words):
        if word in ("-m", "-M"):
            value, kind = (words[at + 1] if at + 1 < len(words) else "?"), word
        elif word.startswith(("-m", "-M")) and len(word) > 2:
            value, kind = word[2:], word[:2]
    if not value:
        return int(total * known.EARLYOOM_DEFAULT_PERCENT / 100)
    try:
        number = float(value.partition(",")[0])
    except ValueError:
        return None
    return int(total * number / 100 if kind == "-m" else number * 1024)


def _against(host: Host, limit: int, total: int) -> Finding:
    source, shown = known.EARLYOOM.source, f"it kills processes below {gib(limit)} GiB available"
    share = host.wanted.utilization
    if share is None:
        return Finding(NAME, "unknown", f"{shown}; without a recipe the free memory is unknown", source=source)
    left = int(total * (1 - share))
    percent = max(1, int(100 * host.wanted.reserve_bytes / 2 / total))
    fix = (
        f"sudo sed -i 's/^EARLYOOM_ARGS=.*/EARLYOOM_ARGS=\"-m {percent}\"/' {CONFIG} && sudo systemctl restart earlyoom"
    )
    recipe = f"the recipe {host.wanted.recipe} leaves {gib(left)} GiB at most"
    if limit >= left:
        return Finding(NAME, "bad", f"{shown}, and {recipe}: {known.EARLYOOM.says}", fix, source)
    if limit >= host.wanted.reserve_bytes:
        reserve = f"a deploy may leave only {gib(host.wanted.reserve_bytes)} GiB available (reserve_gib)"
        return Finding(NAME, "warning", f"{shown}, and {reserve}: {known.EARLYOOM.says}", fix, source)
    return Finding(NAME, "ok", f"{shown}; {recipe}", source=source)
