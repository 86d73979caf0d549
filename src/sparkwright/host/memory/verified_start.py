"""Memory figures of the start that is being verified, for the budget of the next one.

taken: the decrease of MemAvailable from the last reading before `docker start` (module `memory`) until now. GPU's side: the sum
in the engine's log (weights, KV cache, activations, graphs) or the size implied by its flags, whichever is larger: vLLM fills its
share, and takes CUDA graphs on top. host's side: taken less the GPU's side. A process's RSS is no part of it: it does not include
CUDA memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sparkwright.engines.log import gpu_memory
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.memory import Memory
from sparkwright.host.containers import compile_caches
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context
from sparkwright.host.records.start_memory import StartMemory

#: sources of the GPU's side
LOG, FLAGS = "log", "flags"


def of(
    context: Context,
    container: Mapping[str, Any],
    engine_memory: Mapping[str, Any],
    log: EngineState | None,
    lowest_bytes: int | None,
) -> StartMemory | None:
    """Return the figures of a start by this run; None if it did not start the server itself.

    Args:
        context: Of the run that verifies it.
        container: Its inspect.
        engine_memory: As in the plan's scope, with the identity of this start.
        log: Of its engine; None if it cannot be read.
        lowest_bytes: The lowest MemAvailable that the guard saw; None without a guard.
    """
    before, memory = footprint.available_before(context), context.machine.meminfo()
    about = engine_memory.get("start")
    if before is None or not about:
        return None
    after = memory["MemAvailable"]
    taken = max(0, before - after)
    gpu, source = _gpu_side(Memory.of_json(engine_memory), log, memory["MemTotal"], before)
    return StartMemory(
        name=str(container["Name"]).lstrip("/"),
        **{key: str(about.get(key) or "") for key in ("image", "model", "arguments")},
        cold=not compile_caches.started_warm(context, container),
        at=round(time.time(), 3),
        before_bytes=before,
        lowest_bytes=after if lowest_bytes is None else min(lowest_bytes, after),
        after_bytes=after,
        gpu_bytes=gpu,
        gpu_source=source,
        host_bytes=max(0, taken - gpu) if gpu is not None else None,
        kv_tokens=_number(log, "kv_cache_tokens"),
        full_requests=_number(log, "max_concurrency"),
        run=context.run_id,
    )


def _gpu_side(memory: Memory, log: EngineState | None, total_bytes: int, before_bytes: int) -> tuple[int | None, str]:
    """Return the GPU's side and its source. A log with a larger sum than was available before the start is ignored."""
    by_log = gpu_memory.of_state(log) if log else None
    if by_log is not None and by_log > before_bytes:
        by_log = None
    by_flags = memory.gpu_bytes(total_bytes)
    if by_log is None:
        return (by_flags, FLAGS) if by_flags else (None, "")
    return (by_log, LOG) if by_log >= by_flags else (by_flags, FLAGS)


def _number(log: EngineState | None, name: str) -> Any:
    value = log.value(name) if log else None
    return value if isinstance(value, int | float) and value > 0 else None
