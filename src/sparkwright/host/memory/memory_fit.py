"""The memory budget of a start on this host, and the refusal of a server that does not fit, with a table of the budget."""

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
from sparkwright.engines.memory import Memory, build_from_share
from sparkwright.errors import Exit
from sparkwright.host.containers import compile_caches
from sparkwright.host.memory import holders
from sparkwright.host.module import Context
from sparkwright.host.records import start_memory
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.protocol.result import Result
from sparkwright.units import GIB, format_gib

#: clause for an engine without a memory model
UNKNOWN_ENGINE_MEMORY = "what the engine takes is unknown"
SHM_FOLDER = "/dev/shm"
#: suggested reduction after a start that exceeded its budget
REDUCTION_BYTES = 8 * GIB


@dataclass(frozen=True, slots=True)
class PlannedServer:
    """A server to start: its container's name, its engine's memory model, and the identity of its start."""

    name: str
    memory: Memory
    #: image, model and arguments as in StartMemory, and caches (the key of its compile cache)
    start: Mapping[str, Any] = field(default_factory=dict)
    #: size_bytes of its /dev/shm, or host: True if it uses the host's
    shm: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_scope(
        cls, name: str, engine_memory: Mapping[str, Any], utilization: float, needs_bytes: int
    ) -> PlannedServer:
        """Return the server that a task describes, by `engine_memory` of the scope or else only by share and bytes."""
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
    """Return the budget of a server's start on this host, using figures of earlier starts.

    Args:
        host_row: the row for the host itself; None if unknown.
    """
    memory = context.machine.meminfo()
    return budget.build(
        server.memory,
        memory["MemTotal"],
        _build_start(context, server, memory["MemTotal"]),
        reserve_bytes=int(reserve_gib * GIB),
        others=others,
        own=host_row,
        available_bytes=memory["MemAvailable"],
    )


def used_memory_row(context: Context, name: str = "all that is held now") -> Row:
    """Return a row for all memory that is in use now."""
    memory = context.machine.meminfo()
    return Row(name, memory["MemTotal"] - memory["MemAvailable"], "MemTotal less MemAvailable", "host")


def engine_bytes(context: Context, server: PlannedServer) -> int:
    """Return the total bytes that a server needs, on the GPU's and the host's side; 0 if unknown."""
    return compute_budget(context, server, 0).of("server")


def _build_start(context: Context, server: PlannedServer, total_bytes: int) -> StartFacts:
    records = start_memory.read_starts(context.state)
    size, source = _shm_size(context, server.shm, total_bytes)
    key = str(server.start.get("caches") or "")
    return StartFacts(
        learned=start_memory.learned_figures(start_memory.find_last(records, server.start)),
        learned_cold=start_memory.learned_figures(start_memory.find_last(records, server.start, cold=True)),
        warm=bool(key) and compile_caches.read_record(context.state, key).proved,
        shm_bytes=size,
        shm_source=source,
    )


def _shm_size(context: Context, shm: Mapping[str, Any], total_bytes: int) -> tuple[int, str]:
    """Return the maximum size of the server's /dev/shm in bytes, and its source; 0 if the plan has none."""
    if not shm.get("host"):
        return int(shm.get("size_bytes") or 0), "shm_size" if shm.get("size_bytes") else ""
    try:
        if context.machine.root:
            raise OSError  # a simulated host's folder is on a disk
        status = os.statvfs(SHM_FOLDER)
    except OSError:
        return total_bytes // 2, "`ipc: host`: the host's own, half of all memory"
    return status.f_bavail * status.f_frsize, "`ipc: host`: what is free in the host's own"


def budget_data(context: Context, server: PlannedServer, start_budget: Budget) -> dict[str, Any]:
    """Return the data to register for a budget that fits, for the output and for the guard of the start.

    Returns:
        budget (as JSON, with `fix`: what to change if the start exceeds it), and expected_lowest_bytes (the lowest available
        memory during the last verified start of the same image, model and arguments; missing if there was none).
    """
    lower = server.memory.largest_fit(
        start_budget.total_bytes, server.memory.engine_bytes(start_budget.total_bytes) - REDUCTION_BYTES
    )
    fix = f"Set {lower[0]} to {lower[1]:g} or less in the recipe." if lower else "Serve a smaller model."
    data: dict[str, Any] = {"budget": {**start_budget.to_json(), "fix": fix}}
    last = start_memory.find_last(start_memory.read_starts(context.state), server.start)
    if last is not None and last[1] == "start":
        data["expected_lowest_bytes"] = last[0].lowest_bytes
    return data


def refusal(
    context: Context, server: PlannedServer, start_budget: Budget, message: str, data: dict[str, Any]
) -> Result:
    """Return the refusal with the budget, and with a table of the holders if freeing their memory can help.

    Args:
        message: the reason, as a sentence.
    """
    impossible = (
        start_budget.of("server") + sum(row.size_bytes for row in start_budget.rows if row.name == "reserve")
        > start_budget.total_bytes
    )
    rows = [] if impossible else holders.inspect(context)
    evidence = [*start_budget.lines(), *(holders.format_table(rows) if rows else [])]
    details = {
        "need_bytes": start_budget.need_bytes,
        "holders": rows,
        "budget": start_budget.to_json(),
        "evidence": evidence,
    }
    return Result(
        failed=True,
        exit=Exit.REFUSED,
        msg=message,
        fix=describe_fix(server, start_budget, impossible=impossible),
        data={**data, **details},
    )


def describe_fix(server: PlannedServer, start_budget: Budget, *, impossible: bool) -> str:
    """Return what makes the server fit: free memory, or set the largest share or context that fits."""
    reserve = sum(row.size_bytes for row in start_budget.rows if row.name == "reserve")
    if reserve >= start_budget.total_bytes:
        return f"Lower `reserve_gib` (`vars:` of the host): {reserve / GIB:g} GiB is more than the host has."
    lower = budget.format_largest_fit(server.memory, start_budget)
    if any(row.about == "other" and not row.at_most for row in start_budget.rows) and not lower:
        return "Give one a smaller share of memory in its recipe, or serve one of them on another host."
    options = [] if impossible else ["Free memory"]
    options += (
        [f"{'or s' if options else 'S'}et {lower.replace(' ', ' to ')} in the recipe, which fits"] if lower else []
    )
    if not lower:
        less = "lower its share of memory" if server.memory.share else "serve a smaller model or a shorter context"
        options.append(f"or {less}" if options else less.capitalize())
    return f"{', '.join(options)}."


def describe_need(server: PlannedServer, start_budget: Budget) -> str:
    """Return the memory that the start needs, as a clause.

    For example "112.7 GiB needed (101.7 for the engine, 7.0 on the host's side, 4 reserve)".
    """
    reserve = sum(row.size_bytes for row in start_budget.rows if row.name == "reserve")
    engine = start_budget.of("server")
    if not engine:
        return f"{reserve / GIB:g} GiB reserve needed; {UNKNOWN_ENGINE_MEMORY}"
    sides = sum(row.size_bytes for row in start_budget.rows if row.name == budget.HOST_SIDE)
    host = f", {format_gib(sides)} on the host's side" if sides else ""
    return (
        f"{format_gib(engine + reserve)} GiB needed ({format_gib(engine - sides)} for the engine{host}, "
        f"{reserve / GIB:g} reserve)"
    )


#: sources of the figure for the GPU's side
LOG_SOURCE, FLAGS_SOURCE = "log", "flags"


# Memory figures of the start that is being verified, for the budget of the next one.
#
# taken: the decrease of MemAvailable since the last reading before `docker start` (module `memory`). GPU's side: the sum in the
# engine's log (weights, KV cache, activations, graphs) or the size implied by its flags, whichever is larger, because vLLM fills
# its share and allocates CUDA graphs on top. Host's side: taken minus the GPU's side. The RSS of a process is not used: it does
# not include CUDA memory.


def measure_verified_start(
    context: Context,
    container: Mapping[str, Any],
    engine_memory: Mapping[str, Any],
    log: EngineState | None,
    lowest_bytes: int | None,
) -> StartMemory | None:
    """Return the figures of a start by this run; None if this run did not start the server.

    Args:
        context: The context of the run, which verifies the server.
        container: The output of `docker inspect` for its container.
        engine_memory: As in the plan's scope, with the identity of this start.
        log: The state read from the engine's log; None if it cannot be read.
        lowest_bytes: The lowest MemAvailable seen by the guard; None without a guard.
    """
    before, memory = holders.available_before(context), context.machine.meminfo()
    identity = engine_memory.get("start")
    if before is None or not identity:
        return None
    after = memory["MemAvailable"]
    taken = max(0, before - after)
    gpu, source = _gpu_side(Memory.of_json(engine_memory), log, memory["MemTotal"], before)
    return StartMemory(
        name=str(container["Name"]).lstrip("/"),
        **{key: str(identity.get(key) or "") for key in ("image", "model", "arguments")},
        cold=not compile_caches.is_warm_start(context, container),
        at=round(time.time(), 3),
        before_bytes=before,
        lowest_bytes=after if lowest_bytes is None else min(lowest_bytes, after),
        after_bytes=after,
        gpu_bytes=gpu,
        gpu_source=source,
        host_bytes=max(0, taken - gpu) if gpu is not None else None,
        kv_tokens=_log_number(log, "kv_cache_tokens"),
        full_requests=_log_number(log, "max_concurrency"),
        run=context.run_id,
    )


def _gpu_side(memory: Memory, log: EngineState | None, total_bytes: int, before_bytes: int) -> tuple[int | None, str]:
    """Return the GPU's side and its source. A sum in the log that exceeds what was available before the start is ignored."""
    by_log = state.gpu_memory(log) if log else None
    if by_log is not None and by_log > before_bytes:
        by_log = None
    by_flags = memory.gpu_bytes(total_bytes)
    if by_log is None:
        return (by_flags, FLAGS_SOURCE) if by_flags else (None, "")
    return (by_log, LOG_SOURCE) if by_log >= by_flags else (by_flags, FLAGS_SOURCE)


def _log_number(log: EngineState | None, name: str) -> Any:
    value = log.value(name) if log else None
    return value if isinstance(value, int | float) and value > 0 else None
