"""Checks of memory and disks: the budget of the recipe's server, swap, shared memory, earlyoom, and free space."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkwright import units
from sparkwright.doctor import known
from sparkwright.doctor.host import Finding, Host
from sparkwright.engines import budget
from sparkwright.engines.budget import Budget
from sparkwright.errors import SparkwrightError
from sparkwright.host.memory import host_budget, service_guard
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.records import good_states, restart_plans, turns
from sparkwright.units import GIB, gib

NAME = "memory budget"
GUARD, WAKE = "memory guard", "wake on request"


def check(host: Host) -> Iterator[Finding]:
    """Yield the findings about the recipe's memory budget and about sparkwright's services on the host."""
    yield from _budget(host)
    yield from _wake(host)
    if good_states.last(host.context.state) and not host.context.machine.sandbox:
        yield _guard(host)


def _guard(host: Host) -> Finding:
    """Check the memory guard, without which nothing stops a growing server before the host goes down."""
    source, state = known.BUDGET.source, host.context.state
    if service_guard.running(state):
        return Finding(GUARD, "ok", "it runs", source=source)
    evidence = "the memory guard is not running: a server that grows while it serves would take the host down"
    return Finding(GUARD, "warning", evidence, f"invoke health.install --host {host.wanted.name or 'HOST'}", source)


def _wake(host: Host) -> Iterator[Finding]:
    """Yield the state of the wake service, unless requests can't wake any verified server on this host."""
    state = host.context.state
    waking = [server.server for server in state.servers() if restart_plans.wake(server).get("on_request")]
    if not waking:
        return
    names = " and ".join(waking)
    if turns.running(state):
        yield Finding(WAKE, "ok", f"a request wakes {names}")
        return
    evidence = f"the service that switches to {names} on request is not running"
    yield Finding(WAKE, "warning", evidence, f"invoke health.install --host {host.wanted.name or 'HOST'}")


def _budget(host: Host) -> Iterator[Finding]:
    source = known.BUDGET.source
    if not host.wanted.engine_memory:
        yield Finding(NAME, "ok", "no recipe", source=source)
        return
    found = of_host(host)
    if found is None:
        yield Finding(NAME, "unknown", "/proc/meminfo is not readable, or Docker does not answer", source=source)
        return
    engine = found.of("server")
    if not engine:
        yield Finding(NAME, "unknown", f"it is not known how much memory {host.wanted.recipe} takes", source=source)
        return
    sides = f"{host.wanted.recipe} takes {gib(engine)} GiB on both sides"
    if found.fits:
        yield Finding(
            NAME, "ok", f"{sides}; {gib(found.left_bytes)} of {gib(found.total_bytes)} GiB left", source=source
        )
        return
    lower = budget.largest(_server(host).memory, found)
    way = f" ({lower} fits)" if lower else ""
    evidence = f"{sides}: {gib(-found.left_bytes)} GiB more than this host has{way}: {known.BUDGET.says}"
    yield Finding(NAME, "bad", evidence, source=source)


def of_host(host: Host) -> Budget | None:
    """Return the budget of the recipe's server on this host; None if there is no recipe or the host can't be read."""
    if not host.wanted.engine_memory or host.memory() is None:
        return None
    stay = host.wanted.ollama == "leave"
    reserve_gib = host.wanted.reserve_bytes / GIB
    try:
        return host_budget.of(host.context, _server(host), reserve_gib, models_stay=stay)[0]
    except SparkwrightError:
        return None


def _server(host: Host) -> Server:
    return Server.of(host.wanted.container, host.wanted.engine_memory, 0, 0)


SWAP_NAME = "swap"


def check_swap(host: Host) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None or "SwapTotal" not in memory:
        yield Finding(SWAP_NAME, "unknown", "no swap figures in /proc/meminfo", source=known.SWAP.source)
        return
    total, used = memory["SwapTotal"], memory["SwapTotal"] - memory.get("SwapFree", 0)
    if used > known.SWAP_USED_BYTES:
        evidence = f"{gib(used)} of {gib(total)} GiB in use: {known.SWAP.says}"
        fix = f"invoke restart --host {host.wanted.name or 'HOST'}"
        yield Finding(SWAP_NAME, "warning", evidence, fix, known.SWAP.source)
    else:
        shown = f"{gib(used)} of {gib(total)} GiB in use" if total else "none"
        yield Finding(SWAP_NAME, "ok", shown, source=known.SWAP.source)


SHM_NAME = "shared memory"
SHM_FOLDER = "/dev/shm"
BLOCK_BYTES = 512


def check_shm(host: Host) -> Iterator[Finding]:
    about = known.SHM
    if not host.there(SHM_FOLDER):
        yield Finding(SHM_NAME, "unknown", f"no {SHM_FOLDER}", source=about.source)
        return
    held = sum(_bytes(host, f"{SHM_FOLDER}/{name}") for name in host.names_in(SHM_FOLDER))
    size = _size_bytes(host)
    shown = f"{gib(held)} GiB in {SHM_FOLDER}" if size is None else f"{gib(held)} of {gib(size)} GiB in {SHM_FOLDER}"
    if size is not None and size < known.SHM_LEAST_BYTES and host.wanted.ipc == "host":
        small = known.SHM_SMALL
        fix = f"sudo mount -o remount,size=50% {SHM_FOLDER} (and in /etc/fstab)"
        yield Finding(SHM_NAME, "warning", f"{shown}: {small.says}", fix, small.source)
    elif held > known.SHM_BYTES:
        yield Finding(
            SHM_NAME,
            "warning",
            f"{shown}: {about.says}",
            f"ls -lS {SHM_FOLDER}; remove what no process uses",
            about.source,
        )
    else:
        yield Finding(SHM_NAME, "ok", shown, source=about.source)


def _size_bytes(host: Host) -> int | None:
    """Return the capacity of /dev/shm; None if it can't be read, or on a simulated host, where the folder is on a disk."""
    if host.context.machine.root:
        return None
    try:
        found = os.statvfs(SHM_FOLDER)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _bytes(host: Host, path: str) -> int:
    """Return the memory that a file takes; 0 if it is gone."""
    try:
        return host.context.machine.path(path).lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0


EARLYOOM_NAME = "earlyoom"
CONFIG = "/etc/default/earlyoom"


def check_earlyoom(host: Host) -> Iterator[Finding]:
    source = known.EARLYOOM.source
    running = host.processes("earlyoom")
    memory = host.memory()
    if not running:
        seen = host.read("/proc/1/comm") is not None  # a /proc that hides other users' processes hides init too
        words = "earlyoom is not running" if seen else "cannot list processes"
        yield Finding(EARLYOOM_NAME, "ok" if seen else "unknown", words, source=source)
    elif memory is None:
        yield Finding(EARLYOOM_NAME, "unknown", "it is running, but /proc/meminfo is not readable", source=source)
    elif (limit := threshold_bytes(running[0][1:], memory["MemTotal"])) is None:
        yield Finding(
            EARLYOOM_NAME, "unknown", f"cannot parse its options: {' '.join(running[0])}", f"cat {CONFIG}", source
        )
    else:
        yield _against(host, limit, memory["MemTotal"])


def threshold_bytes(words: Sequence[str], total: int) -> int | None:
    """Return the available memory in bytes below which earlyoom acts (-m PERCENT, -M KiB).

    Returns None if its options can't be parsed.
    """
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
        return Finding(EARLYOOM_NAME, "unknown", f"{shown}; without a recipe the free memory is unknown", source=source)
    left = int(total * (1 - share))
    percent = max(1, int(100 * host.wanted.reserve_bytes / 2 / total))
    fix = (
        f"sudo sed -i 's/^EARLYOOM_ARGS=.*/EARLYOOM_ARGS=\"-m {percent}\"/' {CONFIG} && sudo systemctl restart earlyoom"
    )
    recipe = f"the recipe {host.wanted.recipe} leaves {gib(left)} GiB at most"
    if limit >= left:
        return Finding(EARLYOOM_NAME, "bad", f"{shown}, and {recipe}: {known.EARLYOOM.says}", fix, source)
    if limit >= host.wanted.reserve_bytes:
        reserve = f"a deploy may leave only {gib(host.wanted.reserve_bytes)} GiB available (reserve_gib)"
        return Finding(EARLYOOM_NAME, "warning", f"{shown}, and {reserve}: {known.EARLYOOM.says}", fix, source)
    return Finding(EARLYOOM_NAME, "ok", f"{shown}; {recipe}", source=source)


DISK_NAME = "disk"


def check_disk(host: Host) -> Iterator[Finding]:
    machine = host.context.machine
    folders = {"models": machine.expand(host.wanted.model_dir or "~")}
    root = (host.engine_info() or {}).get("DockerRootDir")
    if root and not machine.sandbox:
        folders["images"] = Path(str(root))
    seen: set[int] = set()
    yield from filter(None, (_room(host, what, folder, seen) for what, folder in folders.items()))


def _room(host: Host, what: str, folder: Path, seen: set[int]) -> Finding | None:
    """Return the finding about a disk, or None if the disk was already checked."""
    try:
        place = next(parent for parent in (folder, *folder.parents) if _there(parent))
        device = place.stat().st_dev
        free = host.context.machine.free_bytes(place)
    except OSError as error:
        return Finding(DISK_NAME, "unknown", f"{folder}: {error.strerror}")
    if device in seen:
        return None
    seen.add(device)
    shown = f"{units.size(free)} free for {what} in {place}"
    fix = f"invoke images.prune --host {host.wanted.name or 'HOST'}"
    if free < known.DISK_OUT_BYTES:
        return Finding(DISK_NAME, "bad", shown, fix, known.DISK)
    if free < known.DISK_LOW_BYTES:
        return Finding(DISK_NAME, "warning", f"{shown}: {known.DISK}", fix, known.DISK)
    return Finding(DISK_NAME, "ok", shown, source=known.DISK)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False
