"""The holders of a host's memory and how to free it; and a server's own memory, recorded when it was verified."""

from __future__ import annotations

import getpass
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import shell
from sparkwright.host import gpu_processes, nvidia_smi, ollama
from sparkwright.host.containers import containers
from sparkwright.host.machine import ollama_url
from sparkwright.host.module import Context
from sparkwright.units import format_gib

#: see host/gateway/interim.py
INTERIM_RECORD = "interim"


def record_available(context: Context, available_bytes: int) -> None:
    """Record the available memory before this run starts a server."""
    beside_interim = context.state.read(INTERIM_RECORD) is not None
    context.state.write(
        "before_start", {"available_bytes": available_bytes, "beside_interim": beside_interim, "run": context.run_id}
    )


def available_before(context: Context) -> int | None:
    """Return MemAvailable in bytes before this run started its server; None if that was not recorded."""
    before = context.state.read("before_start") or {}
    return int(before["available_bytes"]) if before.get("run") == context.run_id else None


def measure_held(context: Context) -> int | None:
    """Return the bytes that the server allocated since `record_available` of this run; None if that was not recorded."""
    before = available_before(context)
    held = (before or 0) - context.machine.meminfo()["MemAvailable"]
    return held if before is not None and held > 0 else None


def record_stop(context: Context, container: dict[str, Any]) -> None:
    """Record the available memory and this container's known share before it is stopped.

    If it is stopped already, keep the record of the run that stopped it.
    """
    last_stop = read_stop(context)
    if container["State"]["Running"]:
        available = context.machine.meminfo()["MemAvailable"]
        row = {"id": container["Id"], "available_bytes": available, "since": time.time()}
        held = _cap_held(context, recorded_bytes(context, container["Id"]), available)
        context.state.write("stopping", {**row, "held_bytes": held, "run": context.run_id})
    elif last_stop.get("id") == container["Id"]:
        context.state.write("stopping", {**last_stop, "run": context.run_id})
    else:
        context.state.remove("stopping")


def _cap_held(context: Context, held: int | None, available: int) -> int | None:
    """Return a server's recorded memory in bytes, capped at what can be in use now: it may have exited or still be starting."""
    before = context.state.read("before_start") or {}
    if held is None or before.get("available_bytes") is None:
        return held
    interim_left = before.get("beside_interim") and context.state.read(INTERIM_RECORD) is None
    room = int(before["available_bytes"]) + (held if interim_left else 0)
    return max(0, min(held, room - available))


def read_stop(context: Context) -> dict[str, Any]:
    """Return the record of the last stop: id, available_bytes, held_bytes (None: unknown), run. Empty if there is none."""
    return context.state.read("stopping") or {}


def read_own_stop(context: Context) -> dict[str, Any]:
    """Return the record of the last stop if this run stopped the server (or resumed a run that did)."""
    stop = read_stop(context)
    return stop if stop.get("run") == context.run_id else {}


def recorded_bytes(context: Context, container_id: str) -> int | None:
    """Return the bytes that a container held when it was verified; None if that was not recorded."""
    for state in context.state.servers():
        verified = state.read("verified") or {}
        if verified.get("container_id") == container_id and verified.get("held_bytes"):
            return int(verified["held_bytes"])
    return None


# What holds a host's memory, and how to free it.
#
# A process holds its own memory (resident, not shared with files) and the GPU memory that nvidia-smi reports for it;
# a GB10 reports only these per-process figures, its totals are N/A. The container of a process is found by its cgroup.
# Memory that the kernel does not account for belongs to the driver, not to any process.


MAX_SHOWN_PROCESSES = 5
MIN_SHOWN_BYTES = 256 * 2**20

#: counters in /proc/meminfo of memory used by the kernel and by processes; the rest of MemTotal is the driver's
ACCOUNTED_COUNTERS = (
    "MemFree",
    "Buffers",
    "Cached",
    "SwapCached",
    "AnonPages",
    "Slab",
    "KernelStack",
    "PageTables",
    "Percpu",
)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process and the memory it holds."""

    pid: int
    name: str
    user: str
    #: resident, without file mappings
    own_bytes: int
    #: on the GPU
    gpu_bytes: int
    #: id of its container; empty if it runs in none
    container: str

    @property
    def bytes(self) -> int:
        return self.own_bytes + self.gpu_bytes


def inspect(context: Context) -> list[dict[str, Any]]:
    """Return what holds memory as rows of kind, holder, bytes and frees (how to free it), largest first.

    The kind is container, ollama, process, page cache, shared memory or driver.
    """
    memory = context.machine.meminfo()
    processes = list_processes(context)
    rows = [
        *_ollama_rows(context),
        *_container_rows(context, processes),
        *_process_rows(processes),
        *_kernel_rows(memory, processes),
    ]
    return sorted((row for row in rows if row["bytes"] > MIN_SHOWN_BYTES), key=lambda row: -int(row["bytes"]))


def format_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of a table: GiB, holder, and how to free it."""
    if not rows:
        return ["nothing holds more than 0.25 GiB"]
    width = max(len(row["holder"]) for row in rows)
    return [f"{'GiB':>6}  {'held by':<{width}}  what frees it"] + [
        f"{format_gib(row['bytes']):>6}  {row['holder']:<{width}}  {row['frees']}" for row in rows
    ]


def container_bytes(context: Context, container_id: str) -> int | None:
    """Return the bytes held by a container's processes; None if none is visible (it runs elsewhere, or in a sandbox)."""
    held = [process.bytes for process in list_processes(context) if process.container == container_id]
    return sum(held) if held else None


def list_processes(context: Context) -> list[ProcessMemory]:
    """Return the host's processes that hold more than 16 MiB; empty for a simulated host."""
    import psutil

    if context.machine.root:
        return []
    gpu = _gpu_bytes(context)
    processes = []
    for process in psutil.process_iter(["pid", "name", "username", "memory_info"]):
        memory, pid = process.info["memory_info"], process.info["pid"]
        own_bytes = max(0, memory.rss - getattr(memory, "shared", 0)) if memory is not None else 0
        if own_bytes + gpu.get(pid, 0) > 16 * 2**20:
            name, user = process.info["name"] or "?", process.info["username"] or "?"
            processes.append(
                ProcessMemory(pid, name, user, own_bytes, gpu.get(pid, 0), gpu_processes.find_container_id(pid))
            )
    return processes


def _gpu_bytes(context: Context) -> dict[int, int]:
    """Return the GPU memory of each process, bytes; empty if nvidia-smi is missing or returned no data."""
    sizes: dict[int, int] = defaultdict(int)
    for process in nvidia_smi.list_processes(context.machine).processes:
        sizes[process.pid] += process.bytes or 0
    return sizes


def _ollama_rows(context: Context) -> list[dict[str, Any]]:
    rows = []
    for usage in ollama.inspect(context, timeout_s=2).held:
        size = usage.model.size_bytes
        name = f"Ollama model {usage.model.name}{'' if size else ', size unknown'}"
        rows.append(_build_row("ollama", name, size or 0, _stop_command(usage)))
    return rows


def _stop_command(usage: ollama.HeldModel) -> str:
    """Return the command that unloads a model from its Ollama instance."""
    words = ["ollama", "stop", usage.model.name]
    if usage.instance.kind == "container":
        return f"`{shell.join(['docker', 'exec', usage.instance.name, *words])}`"
    prefix = "" if usage.instance.url == ollama_url("") else f"OLLAMA_HOST={usage.instance.url} "
    return f"`{prefix}{shell.join(words)}`"


def _container_rows(context: Context, processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return a row per running container: the memory of its processes, or else what was recorded when it was verified."""
    held: dict[str, int] = defaultdict(int)
    for process in processes:
        if process.container and not _is_ollama(process):
            held[process.container] += process.bytes
    rows = []
    for row in containers.list_running(context):
        container_id, name = row["Id"], row["Names"][0].lstrip("/")
        size = held.get(container_id) or recorded_bytes(context, container_id) or 0
        rows.append(_build_row("container", f"container {name}", size, f"`docker stop {name}`"))
    return rows


def _process_rows(processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return the largest processes outside containers, except Ollama's, whose models have their own rows."""
    outside = sorted(
        (process for process in processes if not process.container and not _is_ollama(process)),
        key=lambda process: -process.bytes,
    )
    return [
        _build_row(
            "process", f"{process.name} (pid {process.pid}, user {process.user})", process.bytes, _kill_command(process)
        )
        for process in outside[:MAX_SHOWN_PROCESSES]
    ]


def _kill_command(process: ProcessMemory) -> str:
    return f"`kill {process.pid}`" if process.user == getpass.getuser() else f"`sudo kill {process.pid}`"


def _is_ollama(process: ProcessMemory) -> bool:
    return process.name.startswith("ollama")


def _kernel_rows(memory: Mapping[str, int], processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return rows for the page cache, /dev/shm and the driver's memory; the last is missing on a simulated host."""
    shared = memory.get("Shmem", 0)
    cache = memory.get("Cached", 0) + memory.get("Buffers", 0) - shared
    rows = [
        _build_row(
            "page cache", "page cache", cache, "dropped on demand; `echo 3 | sudo tee /proc/sys/vm/drop_caches`"
        ),
        _build_row("shared memory", "shared memory (/dev/shm, tmpfs)", shared, "`ls -l /dev/shm`; remove unused files"),
    ]
    if "AnonPages" in memory:
        gpu = sum(process.gpu_bytes for process in processes)
        rest = memory["MemTotal"] - sum(memory.get(name, 0) for name in ACCOUNTED_COUNTERS) - gpu
        rows.append(_build_row("driver", "driver memory without a process", rest, _DRIVER_FIX))
    return rows


_DRIVER_FIX = "freed within seconds when a CUDA context exits; otherwise leaked until reboot"


def _build_row(kind: str, holder: str, size_bytes: int, frees: str) -> dict[str, Any]:
    return {"kind": kind, "holder": holder, "bytes": size_bytes, "frees": frees}


#: how long the memory of a server that exited may take to be released
RELEASE_S = 10.0


def server_bytes(name: str, context: Context) -> int | None:
    """Return the bytes that a container releases when it stops, or is releasing now.

    0 if it exited long ago; None if unknown.
    """
    container = containers.inspect(context.docker(), name)
    if container is None:
        return 0
    running, exited_s = (
        container["State"]["Running"],
        containers.parse_time(str(container["State"].get("FinishedAt") or "")),
    )
    if not running and (exited_s is None or time.time() - exited_s > RELEASE_S):
        return 0
    recorded = recorded_bytes(context, container["Id"])
    if recorded is not None:
        return recorded
    return container_bytes(context, container["Id"]) if running else None
