"""Find the holders of a host's memory and how to free it, and record the memory of servers.

A process holds its own memory (resident, not shared with files) and the GPU memory that nvidia-smi reports for it. For a GB10,
nvidia-smi reports only these per-process figures; the totals are N/A. A process's container is found through its cgroup.
Memory that the kernel does not account for belongs to the driver, not to a process.
"""

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
from sparkwright.host.records import verified_states
from sparkwright.units import format_gib

#: see host/gateway/interim.py
INTERIM_RECORD = "interim"

#: processes with less memory are ignored
MIN_PROCESS_BYTES = 16 * 2**20
MAX_SHOWN_PROCESSES = 5
MIN_SHOWN_BYTES = 256 * 2**20

#: counters in /proc/meminfo for free memory and for memory used by the kernel and processes; the rest of MemTotal is the driver's
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
_DRIVER_FIX = "freed within seconds when a CUDA context exits; otherwise leaked until reboot"

#: time within which a server's memory is released after it exits
MAX_RELEASE_DELAY_S = 10.0


def record_available(context: Context, available_bytes: int) -> None:
    """Record the available memory before this run starts a server."""
    has_interim = context.state.read(INTERIM_RECORD) is not None
    record = {"available_bytes": available_bytes, "beside_interim": has_interim, "run": context.run_id}
    context.state.write("before_start", record)


def read_available_before_start(context: Context) -> int | None:
    """Return MemAvailable in bytes before this run started its server, or None if it was not recorded."""
    start_record = context.state.read("before_start") or {}
    return int(start_record["available_bytes"]) if start_record.get("run") == context.run_id else None


def measure_held_bytes(context: Context) -> int | None:
    """Return the bytes allocated since this run called `record_available`; None if it did not, or if nothing was allocated."""
    before_bytes = read_available_before_start(context)
    held_bytes = (before_bytes or 0) - context.machine.meminfo()["MemAvailable"]
    return held_bytes if before_bytes is not None and held_bytes > 0 else None


def record_stop(context: Context, container: dict[str, Any]) -> None:
    """Record the available memory and the memory of this container before it is stopped.

    If the container has been stopped already, this run takes over the record of the run that stopped it.
    """
    last_stop = read_stop(context)
    if container["State"]["Running"]:
        available_bytes = context.machine.meminfo()["MemAvailable"]
        held_bytes = _cap_held(context, recorded_bytes(context, container["Id"]), available_bytes)
        record = {
            "id": container["Id"],
            "available_bytes": available_bytes,
            "since": time.time(),
            "held_bytes": held_bytes,
            "run": context.run_id,
        }
        context.state.write("stopping", record)
    elif last_stop.get("id") == container["Id"]:
        context.state.write("stopping", {**last_stop, "run": context.run_id})
    else:
        context.state.remove("stopping")


def _cap_held(context: Context, held_bytes: int | None, available_bytes: int) -> int | None:
    """Cap a server's recorded memory at the memory in use, because it may have exited or not have loaded its model."""
    start_record = context.state.read("before_start") or {}
    if held_bytes is None or start_record.get("available_bytes") is None:
        return held_bytes
    was_interim_removed = start_record.get("beside_interim") and context.state.read(INTERIM_RECORD) is None
    free_bytes_before = int(start_record["available_bytes"]) + (held_bytes if was_interim_removed else 0)
    return max(0, min(held_bytes, free_bytes_before - available_bytes))


def read_stop(context: Context) -> dict[str, Any]:
    """Return the last stop (id, available_bytes, since, held_bytes (None if unknown), run), or {} if none is recorded."""
    return context.state.read("stopping") or {}


def read_own_stop(context: Context) -> dict[str, Any]:
    """Return the record of the last stop if this run, or the run that it resumes, stopped the server; otherwise {}."""
    stop = read_stop(context)
    return stop if stop.get("run") == context.run_id else {}


def recorded_bytes(context: Context, container_id: str) -> int | None:
    """Return the bytes that a container held when it was verified, or None if they were not recorded."""
    for state in context.state.servers():
        verified = verified_states.load_last(state)
        if verified.container_id == container_id and verified.held_bytes:
            return int(verified.held_bytes)
    return None


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process and the memory it holds."""

    pid: int
    name: str
    user: str
    #: resident memory without file mappings
    resident_bytes: int
    gpu_bytes: int
    #: Id of its container; empty for a process outside containers
    container: str

    @property
    def bytes(self) -> int:
        return self.resident_bytes + self.gpu_bytes


def inspect(context: Context) -> list[dict[str, Any]]:
    """Return the holders of memory as rows of kind, holder, bytes and frees (how to free it), largest first.

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
    """Return the rows of `inspect` as lines of a table."""
    if not rows:
        return ["nothing holds more than 0.25 GiB"]
    width = max(len(row["holder"]) for row in rows)
    return [f"{'GiB':>6}  {'held by':<{width}}  what frees it"] + [
        f"{format_gib(row['bytes']):>6}  {row['holder']:<{width}}  {row['frees']}" for row in rows
    ]


def container_bytes(context: Context, container_id: str) -> int | None:
    """Return the bytes held by a container's visible processes; None if there are none, for example in a sandbox."""
    sizes = [process.bytes for process in list_processes(context) if process.container == container_id]
    return sum(sizes) if sizes else None


def list_processes(context: Context) -> list[ProcessMemory]:
    """Return the host's processes that hold more than MIN_PROCESS_BYTES. A simulated host has none."""
    import psutil

    if context.machine.root:
        return []
    gpu_sizes: dict[int, int] = defaultdict(int)
    for gpu_process in nvidia_smi.list_processes(context.machine).processes:
        gpu_sizes[gpu_process.pid] += gpu_process.bytes or 0
    processes = []
    for process in psutil.process_iter(["pid", "name", "username", "memory_info"]):
        memory, pid = process.info["memory_info"], process.info["pid"]
        resident_bytes = max(0, memory.rss - getattr(memory, "shared", 0)) if memory is not None else 0
        gpu_bytes = gpu_sizes.get(pid, 0)
        if resident_bytes + gpu_bytes > MIN_PROCESS_BYTES:
            name, user = process.info["name"] or "?", process.info["username"] or "?"
            container_id = gpu_processes.find_container_id(pid)
            processes.append(ProcessMemory(pid, name, user, resident_bytes, gpu_bytes, container_id))
    return processes


def _ollama_rows(context: Context) -> list[dict[str, Any]]:
    rows = []
    for held_model in ollama.inspect(context, timeout_s=2).held_models:
        size_bytes = held_model.model.size_bytes
        name = f"Ollama model {held_model.model.name}{'' if size_bytes else ', size unknown'}"
        rows.append(_build_row("ollama", name, size_bytes or 0, _stop_command(held_model)))
    return rows


def _stop_command(held: ollama.HeldModel) -> str:
    """Return the command that unloads a model from its Ollama instance."""
    words = ["ollama", "stop", held.model.name]
    if held.instance.kind == "container":
        return f"`{shell.join(['docker', 'exec', held.instance.name, *words])}`"
    prefix = "" if held.instance.url == ollama_url("") else f"OLLAMA_HOST={held.instance.url} "
    return f"`{prefix}{shell.join(words)}`"


def _container_rows(context: Context, processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return a row for each running container: the memory of its processes, or else the recorded memory."""
    sizes: dict[str, int] = defaultdict(int)
    for process in processes:
        if process.container and not _is_ollama(process):
            sizes[process.container] += process.bytes
    rows = []
    for container in containers.list_running(context):
        container_id, name = container["Id"], containers.name_of(container)
        size_bytes = sizes.get(container_id) or recorded_bytes(context, container_id) or 0
        rows.append(_build_row("container", f"container {name}", size_bytes, f"`docker stop {name}`"))
    return rows


def _process_rows(processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return the rows of the largest processes outside containers, except Ollama's, whose memory is shown per model."""
    other_processes = [process for process in processes if not process.container and not _is_ollama(process)]
    rows = []
    for process in sorted(other_processes, key=lambda process: -process.bytes)[:MAX_SHOWN_PROCESSES]:
        holder = f"{process.name} (pid {process.pid}, user {process.user})"
        sudo = "" if process.user == getpass.getuser() else "sudo "
        rows.append(_build_row("process", holder, process.bytes, f"`{sudo}kill {process.pid}`"))
    return rows


def _is_ollama(process: ProcessMemory) -> bool:
    return process.name.startswith("ollama")


def _kernel_rows(memory: Mapping[str, int], processes: list[ProcessMemory]) -> list[dict[str, Any]]:
    """Return rows for the page cache, /dev/shm and, except on a simulated host, the driver's memory."""
    shared_bytes = memory.get("Shmem", 0)
    cache_bytes = memory.get("Cached", 0) + memory.get("Buffers", 0) - shared_bytes
    cache_fix = "dropped on demand; `echo 3 | sudo tee /proc/sys/vm/drop_caches`"
    shm_fix = "`ls -l /dev/shm`; remove unused files"
    rows = [
        _build_row("page cache", "page cache", cache_bytes, cache_fix),
        _build_row("shared memory", "shared memory (/dev/shm, tmpfs)", shared_bytes, shm_fix),
    ]
    if "AnonPages" in memory:
        gpu_bytes = sum(process.gpu_bytes for process in processes)
        accounted_bytes = sum(memory.get(name, 0) for name in ACCOUNTED_COUNTERS)
        driver_bytes = memory["MemTotal"] - accounted_bytes - gpu_bytes
        rows.append(_build_row("driver", "driver memory without a process", driver_bytes, _DRIVER_FIX))
    return rows


def _build_row(kind: str, holder: str, size_bytes: int, frees: str) -> dict[str, Any]:
    return {"kind": kind, "holder": holder, "bytes": size_bytes, "frees": frees}


def server_bytes(name: str, context: Context) -> int | None:
    """Return the bytes that a container still holds: 0 if it exited more than MAX_RELEASE_DELAY_S ago, None if unknown."""
    container = containers.inspect(context.docker(), name)
    if container is None:
        return 0
    is_running = container["State"]["Running"]
    exited_s = containers.parse_time(str(container["State"].get("FinishedAt") or ""))
    if not is_running and (exited_s is None or time.time() - exited_s > MAX_RELEASE_DELAY_S):
        return 0
    size_bytes = recorded_bytes(context, container["Id"])
    if size_bytes is not None:
        return size_bytes
    return container_bytes(context, container["Id"]) if is_running else None
