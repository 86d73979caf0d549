"""Who holds the memory of a host, and what frees it."""

from __future__ import annotations

from typing import Any

from sparkwright.errors import SparkwrightError
from sparkwright.modules.base import Context
from sparkwright.modules.ollama_client import Absent, Busy, Ollama

SHOWN_PROCESSES = 5
SMALLEST_BYTES = 256 * 2**20


def look(context: Context) -> list[dict[str, Any]]:
    """Rows of holder, bytes and frees, largest first. Driver memory that no process owns is what the others leave over."""
    rows = [*_ollama(context), *_gpu_processes(context), *_processes()]
    memory = context.machine.meminfo()
    cache = memory.get("Cached", 0) - memory.get("Shmem", 0)
    if cache > SMALLEST_BYTES:
        rows.append(
            _row("page cache", cache, "the kernel gives it back; `sync; echo 3 > /proc/sys/vm/drop_caches` as root")
        )
    known = sum(row["bytes"] for row in rows) + memory["MemFree"]
    rest = memory["MemTotal"] - known
    if rest > SMALLEST_BYTES:
        rows.append(
            _row(
                "not accounted for (driver, containers)",
                rest,
                "`docker ps`; a lingering CUDA context goes with its process",
            )
        )
    return sorted(rows, key=lambda row: -int(row["bytes"]))


def _row(holder: str, size_bytes: int, frees: str) -> dict[str, Any]:
    return {"holder": holder, "bytes": size_bytes, "frees": frees}


def _ollama(context: Context) -> list[dict[str, Any]]:
    try:
        loaded = Ollama(context.machine.ollama_url, timeout_s=2).loaded()
    except (Absent, Busy):
        return []
    return [_row(f"Ollama: {one.name}", one.size_bytes, f"ollama stop {one.name}") for one in loaded]


def _gpu_processes(context: Context) -> list[dict[str, Any]]:
    """Per process nvidia-smi works on a GB10; its totals do not."""
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    try:
        said = context.machine.run(query, timeout_s=5)
    except SparkwrightError:
        return []
    rows = []
    for line in said.out.splitlines() if said.ok else ():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[2].isdigit() and "ollama" not in parts[1]:
            rows.append(_row(f"GPU process {parts[1]} (pid {parts[0]})", int(parts[2]) * 2**20, f"kill {parts[0]}"))
    return rows


def _processes() -> list[dict[str, Any]]:
    import psutil

    seen = []
    for process in psutil.process_iter(["pid", "name", "username", "memory_info"]):
        memory = process.info["memory_info"]
        if memory is not None and memory.rss > SMALLEST_BYTES:
            who = f"{process.info['name']} (pid {process.info['pid']}, {process.info['username']})"
            seen.append(_row(who, memory.rss, f"kill {process.info['pid']}"))
    return sorted(seen, key=lambda row: -int(row["bytes"]))[:SHOWN_PROCESSES]
