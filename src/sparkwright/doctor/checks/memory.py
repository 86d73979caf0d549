"""Checks for memory and disks: the budget of the recipe's server, swap, shared memory, earlyoom, and free space."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkwright import units
from sparkwright.doctor import known_facts
from sparkwright.doctor.checks.registration import register_check
from sparkwright.doctor.host import Finding, Host
from sparkwright.engines import budget
from sparkwright.engines.budget import Budget
from sparkwright.errors import SparkwrightError
from sparkwright.host.memory import host_budget, service_guard
from sparkwright.host.memory.memory_fit import SHM_FOLDER, PlannedServer
from sparkwright.host.records import restart_plans, turns, verified_states
from sparkwright.units import GB, GIB, format_gib

#: amount of swap in use above which a warning is reported
MAX_USED_SWAP_BYTES = 2 * GIB
#: free disk space below which a warning is reported; a 20 GB image needs twice its size while it is unpacked
DISK_LOW_GB = 50
#: free disk space below which the verdict is bad
DISK_CRITICAL_GB = 5
BUDGET_CHECK = "memory budget"
GUARD_CHECK, WAKE_CHECK = "memory guard", "wake on request"


@register_check(BUDGET_CHECK, per_server=True)
def check_memory(host: Host) -> Iterator[Finding]:
    """Yield the findings about the recipe's memory budget and about sparkwright's services on the host."""
    yield from _check_budget(host)
    yield from _check_wake(host)
    if verified_states.load_last(host.context.state) and not host.context.machine.sandbox:
        yield _guard_finding(host)


def _guard_finding(host: Host) -> Finding:
    """Check the memory guard, which stops a growing server before the host runs out of memory."""
    source = known_facts.BUDGET.source
    if service_guard.is_running(host.context.state):
        return Finding(GUARD_CHECK, "ok", "running", source=source)
    evidence = "not running: a server whose memory use grows would take the host down"
    fix = f"invoke health.install --host {host.server.name or 'HOST'}"
    return Finding(GUARD_CHECK, "warning", evidence, fix, source)


def _check_wake(host: Host) -> Iterator[Finding]:
    """Check the wake service if requests can wake a server on this host."""
    state = host.context.state
    sleeping_servers = [
        server.server for server in state.servers() if restart_plans.read_wake(server).get("on_request")
    ]
    if not sleeping_servers:
        return
    names = " and ".join(sleeping_servers)
    if turns.is_service_running(state):
        yield Finding(WAKE_CHECK, "ok", f"a request wakes {names}")
        return
    evidence = f"the service that switches to {names} on request is not running"
    yield Finding(WAKE_CHECK, "warning", evidence, f"invoke health.install --host {host.server.name or 'HOST'}")


def _check_budget(host: Host) -> Iterator[Finding]:
    source = known_facts.BUDGET.source
    if not host.server.engine_memory:
        yield Finding(BUDGET_CHECK, "ok", "no recipe", source=source)
        return
    memory_budget = server_budget(host)
    if memory_budget is None:
        yield Finding(BUDGET_CHECK, "unknown", "/proc/meminfo is not readable, or Docker did not answer", source=source)
        return
    engine_bytes = memory_budget.owner_bytes("server")
    if not engine_bytes:
        yield Finding(BUDGET_CHECK, "unknown", f"the memory that {host.server.recipe} needs is unknown", source=source)
        return
    need_clause, left_bytes = f"{host.server.recipe} needs {format_gib(engine_bytes)} GiB", memory_budget.left_bytes
    if memory_budget.fits:
        evidence = f"{need_clause}; {format_gib(left_bytes)} of {format_gib(memory_budget.total_bytes)} GiB left"
        yield Finding(BUDGET_CHECK, "ok", evidence, source=source)
        return
    largest_fit = budget.format_largest_fit(_intended_server(host).memory, memory_budget)
    hint = f" ({largest_fit} fits)" if largest_fit else ""
    evidence = f"{need_clause}: {format_gib(-left_bytes)} GiB more than this host has{hint}: {known_facts.BUDGET.text}"
    yield Finding(BUDGET_CHECK, "bad", evidence, source=source)


def server_budget(host: Host) -> Budget | None:
    """Return the budget of the recipe's server on this host; None if there is no recipe or the host can't be read."""
    if not host.server.engine_memory or host.memory() is None:
        return None
    models_stay = host.server.ollama == "leave"
    reserve_gib = host.server.reserve_bytes / GIB
    try:
        return host_budget.compute_budget(host.context, _intended_server(host), reserve_gib, models_stay=models_stay)[0]
    except SparkwrightError:
        return None


def _intended_server(host: Host) -> PlannedServer:
    return PlannedServer.from_scope(host.server.container, host.server.engine_memory, 0, 0)


SWAP_CHECK = "swap"


@register_check(SWAP_CHECK)
def check_swap(host: Host) -> Iterator[Finding]:
    memory = host.memory()
    if memory is None or "SwapTotal" not in memory:
        yield Finding(SWAP_CHECK, "unknown", "no swap figures in /proc/meminfo", source=known_facts.SWAP.source)
        return
    total_bytes, used_bytes = memory["SwapTotal"], memory["SwapTotal"] - memory.get("SwapFree", 0)
    if used_bytes > MAX_USED_SWAP_BYTES:
        evidence = f"{format_gib(used_bytes)} of {format_gib(total_bytes)} GiB in use: {known_facts.SWAP.text}"
        fix = f"invoke restart --host {host.server.name or 'HOST'}"
        yield Finding(SWAP_CHECK, "warning", evidence, fix, known_facts.SWAP.source)
    else:
        summary = f"{format_gib(used_bytes)} of {format_gib(total_bytes)} GiB in use" if total_bytes else "none"
        yield Finding(SWAP_CHECK, "ok", summary, source=known_facts.SWAP.source)


SHM_CHECK = "shared memory"
BLOCK_BYTES = 512


@register_check(SHM_CHECK)
def check_shm(host: Host) -> Iterator[Finding]:
    fact = known_facts.SHM
    if not host.path_exists(SHM_FOLDER):
        yield Finding(SHM_CHECK, "unknown", f"no {SHM_FOLDER}", source=fact.source)
        return
    used_bytes = sum(_file_bytes(host, f"{SHM_FOLDER}/{name}") for name in host.list_folder(SHM_FOLDER))
    size_bytes = _shm_size_bytes(host)
    capacity_clause = "" if size_bytes is None else f" of {format_gib(size_bytes)}"
    summary = f"{format_gib(used_bytes)}{capacity_clause} GiB in {SHM_FOLDER}"
    if size_bytes is not None and size_bytes < known_facts.MIN_SHM_BYTES and host.server.ipc == "host":
        small_fact = known_facts.SHM_SMALL
        fix = f"sudo mount -o remount,size=50% {SHM_FOLDER} (and in /etc/fstab)"
        yield Finding(SHM_CHECK, "warning", f"{summary}: {small_fact.text}", fix, small_fact.source)
    elif used_bytes > known_facts.SHM_WARNING_BYTES:
        fix = f"ls -lS {SHM_FOLDER}; remove files that no process uses"
        yield Finding(SHM_CHECK, "warning", f"{summary}: {fact.text}", fix, fact.source)
    else:
        yield Finding(SHM_CHECK, "ok", summary, source=fact.source)


def _shm_size_bytes(host: Host) -> int | None:
    """Return the capacity of /dev/shm; None if it can't be read, and on a simulated host, where the folder is on a disk."""
    if host.context.machine.root:
        return None
    try:
        filesystem = os.statvfs(SHM_FOLDER)
    except OSError:
        return None
    return filesystem.f_blocks * filesystem.f_frsize


def _file_bytes(host: Host, path: str) -> int:
    """Return the memory that a file uses; 0 if it has been removed."""
    try:
        return host.context.machine.path(path).lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0


EARLYOOM_CHECK = "earlyoom"
EARLYOOM_CONFIG_PATH = "/etc/default/earlyoom"


@register_check(EARLYOOM_CHECK)
def check_earlyoom(host: Host) -> Iterator[Finding]:
    source, memory = known_facts.EARLYOOM.source, host.memory()
    processes = host.processes("earlyoom")
    if not processes:
        if host.read("/proc/1/comm") is None:  # this /proc hides the processes of other users
            yield Finding(EARLYOOM_CHECK, "unknown", "cannot list processes", source=source)
        else:
            yield Finding(EARLYOOM_CHECK, "ok", "earlyoom is not running", source=source)
    elif memory is None:
        yield Finding(EARLYOOM_CHECK, "unknown", "running, but /proc/meminfo is not readable", source=source)
    elif (limit_bytes := threshold_bytes(processes[0][1:], memory["MemTotal"])) is None:
        evidence = f"cannot parse its options: {' '.join(processes[0])}"
        yield Finding(EARLYOOM_CHECK, "unknown", evidence, f"cat {EARLYOOM_CONFIG_PATH}", source)
    else:
        yield _earlyoom_finding(host, limit_bytes, memory["MemTotal"])


def threshold_bytes(words: Sequence[str], total_bytes: int) -> int | None:
    """Return the available memory in bytes below which earlyoom acts (-m PERCENT, -M KiB).

    Returns None if its options can't be parsed.
    """
    value, option = "", "-m"
    for index, word in enumerate(words):
        if word in ("-m", "-M"):
            value, option = (words[index + 1] if index + 1 < len(words) else "?"), word
        elif word.startswith(("-m", "-M")):
            value, option = word[2:], word[:2]
    if not value:
        return int(total_bytes * known_facts.EARLYOOM_DEFAULT_PERCENT / 100)
    try:
        number = float(value.partition(",")[0])
    except ValueError:
        return None
    return int(total_bytes * number / 100 if option == "-m" else number * 1024)


def _earlyoom_finding(host: Host, limit_bytes: int, total_bytes: int) -> Finding:
    fact, summary = (
        known_facts.EARLYOOM,
        f"it kills processes when less than {format_gib(limit_bytes)} GiB is available",
    )
    share, reserve_bytes = host.server.utilization, host.server.reserve_bytes
    if share is None:
        evidence = f"{summary}; without a recipe, the free memory is unknown"
        return Finding(EARLYOOM_CHECK, "unknown", evidence, source=fact.source)
    left_bytes = int(total_bytes * (1 - share))
    percent = max(1, int(100 * reserve_bytes / 2 / total_bytes))
    edit_command = f"sudo sed -i 's/^EARLYOOM_ARGS=.*/EARLYOOM_ARGS=\"-m {percent}\"/' {EARLYOOM_CONFIG_PATH}"
    fix = f"{edit_command} && sudo systemctl restart earlyoom"
    free_memory_clause = f"the recipe {host.server.recipe} leaves at most {format_gib(left_bytes)} GiB"
    if limit_bytes >= left_bytes:
        return Finding(EARLYOOM_CHECK, "bad", f"{summary}, and {free_memory_clause}: {fact.text}", fix, fact.source)
    if limit_bytes >= reserve_bytes:
        reserve_clause = f"a deploy may leave only {format_gib(reserve_bytes)} GiB available (reserve_gib)"
        return Finding(EARLYOOM_CHECK, "warning", f"{summary}, and {reserve_clause}: {fact.text}", fix, fact.source)
    return Finding(EARLYOOM_CHECK, "ok", f"{summary}; {free_memory_clause}", source=fact.source)


DISK_CHECK = "disk"


@register_check(DISK_CHECK)
def check_disk(host: Host) -> Iterator[Finding]:
    machine = host.context.machine
    folders = {"models": machine.expand(host.server.model_dir or "~")}
    docker_root = (host.engine_info() or {}).get("DockerRootDir")
    if docker_root and not machine.sandbox:
        folders["images"] = Path(str(docker_root))
    checked_devices: set[int] = set()
    yield from filter(
        None, (_disk_finding(host, purpose, folder, checked_devices) for purpose, folder in folders.items())
    )


def _disk_finding(host: Host, purpose: str, folder: Path, checked_devices: set[int]) -> Finding | None:
    """Return the finding about a folder's disk, and record the disk as checked; None if it already was."""
    try:
        existing_folder = next(parent for parent in (folder, *folder.parents) if _exists(parent))
        device = existing_folder.stat().st_dev
        free_bytes = host.context.machine.free_bytes(existing_folder)
    except OSError as error:
        return Finding(DISK_CHECK, "unknown", f"{folder}: {error.strerror}")
    if device in checked_devices:
        return None
    checked_devices.add(device)
    summary = f"{units.format_size(free_bytes)} free for {purpose} in {existing_folder}"
    fix = f"invoke images.prune --host {host.server.name or 'HOST'}"
    if free_bytes < DISK_CRITICAL_GB * GB:
        return Finding(DISK_CHECK, "bad", summary, fix, known_facts.DISK_NEED)
    if free_bytes < DISK_LOW_GB * GB:
        return Finding(DISK_CHECK, "warning", f"{summary}: {known_facts.DISK_NEED}", fix, known_facts.DISK_NEED)
    return Finding(DISK_CHECK, "ok", summary, source=known_facts.DISK_NEED)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False
