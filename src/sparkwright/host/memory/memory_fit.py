"""Compute the memory budget of a server's start, refuse a server that does not fit, and measure a verified start.

The measurement is used in the budget of the next start. Its total is the decrease of MemAvailable since the last reading before
`docker start` (module `memory`). GPU side: the sum in the engine's log (weights, KV cache, activations, graphs) or the size
implied by its flags, whichever is larger, because vLLM fills its share and allocates CUDA graphs on top. Host side: the total
minus the GPU side. The RSS of a process is not used, because it does not include CUDA memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import budget
from sparkwright.engines.budget import Budget, Row, StartFacts
from sparkwright.engines.log import state
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.memory import Memory, build_from_share, offload_flags
from sparkwright.errors import Exit
from sparkwright.host.containers import compile_caches, containers
from sparkwright.host.memory import holders
from sparkwright.host.module import Context
from sparkwright.host.records import start_memory
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.protocol.result import Result
from sparkwright.units import GIB, format_gib

#: clause for an engine without a memory model
UNKNOWN_ENGINE_MEMORY = "the memory need of the engine is unknown"
SHM_FOLDER = "/dev/shm"
#: suggested reduction after a start that exceeded its budget
REDUCTION_BYTES = 8 * GIB
#: sources of the measured GPU side
LOG_SOURCE, FLAGS_SOURCE = "log", "flags"


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """A server to start."""

    #: name of the container
    name: str
    #: memory model of the engine
    memory: Memory
    #: identity of the start: image, model and arguments as in StartMemory, and caches (the key of the compile cache)
    start: Mapping[str, Any] = field(default_factory=dict)
    #: the server's /dev/shm: size_bytes, or host: True if it uses the host's
    shm: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_scope(
        cls, name: str, engine_memory: Mapping[str, Any], utilization: float, needs_bytes: int
    ) -> PlannedServer:
        """Return the server of a task, from the scope's `engine_memory`, or from share and bytes if `engine_memory` is empty."""
        if not engine_memory:
            return cls(name, build_from_share(utilization, needs_bytes))
        start = engine_memory.get("start") or {}
        return cls(name, Memory.of_json(engine_memory), start, engine_memory.get("shm") or {})


def compute_budget(
    context: Context,
    server: PlannedServer,
    reserve_gib: float,
    *,
    others: tuple[Row, ...] = (),
    host_row: Row | None = None,
) -> Budget:
    """Return the budget of a server's start on this host, using measurements of earlier starts.

    Args:
        others: the rows of everything else on the host.
        host_row: the row of the host itself; None if unknown.
    """
    memory = context.machine.meminfo()
    return budget.build(
        server.memory,
        memory["MemTotal"],
        _build_start(context, server, memory["MemTotal"]),
        reserve_bytes=int(reserve_gib * GIB),
        other_rows=others,
        system_row=host_row,
        available_bytes=memory["MemAvailable"],
    )


def used_memory_row(context: Context) -> Row:
    """Return a row for all memory in use."""
    memory = context.machine.meminfo()
    used_bytes = memory["MemTotal"] - memory["MemAvailable"]
    return Row("memory in use now", used_bytes, "MemTotal less MemAvailable", "host")


def engine_bytes(context: Context, server: PlannedServer) -> int:
    """Return the bytes that a server needs in total, on the GPU side and the host side; 0 if unknown."""
    return compute_budget(context, server, 0).owner_bytes("server")


def _build_start(context: Context, server: PlannedServer, total_bytes: int) -> StartFacts:
    records = start_memory.read_starts(context.state)
    shm_bytes, shm_source = _shm_size(context, server.shm, total_bytes)
    cache_key = str(server.start.get("caches") or "")
    return StartFacts(
        last_start=start_memory.measured_figures(start_memory.find_last(records, server.start)),
        last_cold_start=start_memory.measured_figures(start_memory.find_last(records, server.start, is_cold=True)),
        has_warm_cache=bool(cache_key) and compile_caches.read_record(context.state, cache_key).proved,
        shm_bytes=shm_bytes,
        shm_source=shm_source,
    )


def _shm_size(context: Context, shm: Mapping[str, Any], total_bytes: int) -> tuple[int, str]:
    """Return the maximum size of the server's /dev/shm in bytes (0 if not set), and the source of the figure."""
    if not shm.get("host"):
        return int(shm.get("size_bytes") or 0), "shm_size" if shm.get("size_bytes") else ""
    try:
        if context.machine.root:
            raise OSError  # a simulated host's folder is on a disk
        status = os.statvfs(SHM_FOLDER)
    except OSError:
        return total_bytes // 2, "`ipc: host`: the host's /dev/shm, half of all memory"
    return status.f_bavail * status.f_frsize, "`ipc: host`: free space in the host's /dev/shm"


def budget_data(context: Context, server: PlannedServer, start_budget: Budget) -> dict[str, Any]:
    """Return the data to register for a budget that fits, for the output and for the guard of the start.

    Returns:
        budget (as JSON; its `fix` is for a start that exceeds it), and expected_lowest_bytes (the lowest available memory
        during the last verified start of the same image, model and arguments; missing if there was none).
    """
    reduced_bytes = server.memory.engine_bytes(start_budget.total_bytes) - REDUCTION_BYTES
    lower_setting = server.memory.largest_fit(start_budget.total_bytes, reduced_bytes)
    fix = (
        f"Set {lower_setting[0]} to {lower_setting[1]:g} or less in the recipe."
        if lower_setting
        else "Serve a smaller model."
    )
    data: dict[str, Any] = {"budget": {**start_budget.to_json(), "fix": fix}}
    last_start = start_memory.find_last(start_memory.read_starts(context.state), server.start)
    if last_start is not None and last_start[1] == "start":
        data["expected_lowest_bytes"] = last_start[0].lowest_bytes
    return data


def refusal(
    context: Context, server: PlannedServer, start_budget: Budget, message: str, data: dict[str, Any]
) -> Result:
    """Return a refused result with the budget, and with a table of what holds the memory if freeing memory can help."""
    never_fits = start_budget.owner_bytes("server") + _reserve_bytes(start_budget) > start_budget.total_bytes
    rows = [] if never_fits else holders.inspect(context)
    details = {
        "need_bytes": start_budget.need_bytes,
        "holders": rows,
        "budget": start_budget.to_json(),
        "evidence": [*start_budget.lines(), *(holders.format_table(rows) if rows else [])],
    }
    return Result(
        failed=True,
        exit=Exit.REFUSED,
        msg=message,
        fix=describe_fix(server, start_budget, never_fits=never_fits),
        data={**data, **details},
    )


def _reserve_bytes(start_budget: Budget) -> int:
    return sum(row.size_bytes for row in start_budget.rows if row.name == "reserve")


def describe_fix(server: PlannedServer, start_budget: Budget, *, never_fits: bool) -> str:
    """Return how to make the server fit: free memory, or set the largest share or context that fits.

    Args:
        never_fits: the server does not fit even if all other memory is freed.
    """
    reserve_bytes = _reserve_bytes(start_budget)
    if reserve_bytes >= start_budget.total_bytes:
        return f"Lower `reserve_gib` (in the host's `vars:`): {reserve_bytes / GIB:g} GiB is more than the host has."
    largest_fitting_flag = budget.format_largest_fit(server.memory, start_budget)
    if any(row.about == "other" and not row.at_most for row in start_budget.rows) and not largest_fitting_flag:
        return "Give one of the servers a smaller share of memory in its recipe, or serve it on another host."
    if largest_fitting_flag:
        change = f"set {largest_fitting_flag.replace(' ', ' to ')} in the recipe, which fits"
    elif server.memory.share:
        flags = offload_flags(server.memory)
        change = f"lower {', '.join(flags)} or its share of memory" if flags else "lower its share of memory"
    else:
        change = "serve a smaller model or a shorter context"
    return f"{change[0].upper()}{change[1:]}." if never_fits else f"Free memory, or {change}."


def describe_need(start_budget: Budget) -> str:
    """Return the memory that the start needs, as a clause.

    For example "112.7 GiB needed (101.7 for the engine, 7.0 on the host's side, 4 reserve)".
    """
    reserve_bytes = _reserve_bytes(start_budget)
    server_bytes = start_budget.owner_bytes("server")
    if not server_bytes:
        return f"{reserve_bytes / GIB:g} GiB reserve needed; {UNKNOWN_ENGINE_MEMORY}"
    host_bytes = sum(row.size_bytes for row in start_budget.rows if row.name == budget.HOST_SIDE_ROW_NAME)
    host_side_text = f", {format_gib(host_bytes)} on the host's side" if host_bytes else ""
    return (
        f"{format_gib(server_bytes + reserve_bytes)} GiB needed ({format_gib(server_bytes - host_bytes)} for the "
        f"engine{host_side_text}, {reserve_bytes / GIB:g} reserve)"
    )


def measure_verified_start(
    context: Context,
    container: Mapping[str, Any],
    engine_memory: Mapping[str, Any],
    log: EngineState | None,
    lowest_bytes: int | None,
) -> StartMemory | None:
    """Return the measurement of a verified start, or None if this run did not start the server.

    Args:
        container: the inspect data of the server's container.
        engine_memory: the memory model with the identity of the start, as in the scope.
        log: the state read from the engine's log; None if it cannot be read.
        lowest_bytes: the lowest MemAvailable that the guard recorded; None without a guard.
    """
    before_bytes, memory = holders.read_available_before_start(context), context.machine.meminfo()
    identity = engine_memory.get("start")
    if before_bytes is None or not identity:
        return None
    after_bytes = memory["MemAvailable"]
    gpu_bytes, gpu_source = _gpu_side(Memory.of_json(engine_memory), log, memory["MemTotal"], before_bytes)
    host_bytes = max(0, before_bytes - after_bytes) - gpu_bytes if gpu_bytes is not None else None
    return StartMemory(
        name=containers.name_of(container),
        **{key: str(identity.get(key) or "") for key in ("image", "model", "arguments")},
        cold=not compile_caches.is_warm_start(context, container),
        at=round(time.time(), 3),
        before_bytes=before_bytes,
        lowest_bytes=after_bytes if lowest_bytes is None else min(lowest_bytes, after_bytes),
        after_bytes=after_bytes,
        gpu_bytes=gpu_bytes,
        gpu_source=gpu_source,
        host_bytes=None if host_bytes is None else max(0, host_bytes),
        kv_tokens=_log_number(log, "kv_cache_tokens"),
        full_requests=_log_number(log, "max_concurrency"),
        run=context.run_id,
    )


def _gpu_side(memory: Memory, log: EngineState | None, total_bytes: int, before_bytes: int) -> tuple[int | None, str]:
    """Return the bytes of the GPU side, and their source. A sum in the log that exceeds `before_bytes` is ignored."""
    log_bytes = state.gpu_memory_bytes(log) if log else None
    if log_bytes is not None and log_bytes > before_bytes:
        log_bytes = None
    flags_bytes = memory.gpu_bytes(total_bytes)
    if log_bytes is None:
        return (flags_bytes, FLAGS_SOURCE) if flags_bytes else (None, "")
    return (log_bytes, LOG_SOURCE) if log_bytes >= flags_bytes else (flags_bytes, FLAGS_SOURCE)


def _log_number(log: EngineState | None, name: str) -> Any:
    value = log.value(name) if log else None
    return value if isinstance(value, int | float) and value > 0 else None
