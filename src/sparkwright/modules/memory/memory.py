from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from sparkwright import defaults
from sparkwright.host.memory import footprint, memory_fit
from sparkwright.host.module import Context, Module
from sparkwright.host.ollama import ollama_models
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib

POLL_S = 0.1
RECHECK_S = 1.0


class Memory(Module["Memory.Args"]):
    """The memory that the engine will want is free, seen in MemAvailable: nothing else is believed on shared memory.

    The engine wants utilization x MemTotal, or needs_bytes. A container that was stopped, or a model that Ollama let go,
    gives its memory back a little later, so this waits. A model that Ollama has loaded since it was asked to unload is
    unloaded again: one in the first phase of its load is not listed, and comes after all. What still does not fit is refused
    with a table of who holds the memory and what frees it.

    Returns: available_bytes, need_bytes, waited_s; on a refusal holders.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1")
        needs_bytes: int = arg("what an engine without such a share takes, bytes", default=0)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        timeout_s: float = arg("how long to wait for memory to be released, seconds", default=60.0)
        ollama: Literal["unload", "stop", "leave"] = arg("leave: a model that Ollama loads stays", default="unload")

    def run(self, args: Args, context: Context) -> Result:
        need = memory_fit.Need.of(context, args.utilization, args.needs_bytes, args.reserve_gib)
        if not need.possible:
            return memory_fit.never(need)
        started_s = looked_s = time.monotonic()
        while True:
            available = context.machine.meminfo()["MemAvailable"]
            now_s = time.monotonic()
            waited_s = now_s - started_s
            data = {"available_bytes": available, "need_bytes": need.engine_bytes, "waited_s": round(waited_s, 2)}
            if available >= need.bytes:
                if not context.check:
                    footprint.before_start(context, available)
                needs = f"the engine needs {gib(need.engine_bytes)} GiB" if need.engine_bytes else memory_fit.UNKNOWN
                msg = f"{gib(available)} GiB available, {needs}"
                return Result(msg=msg, data=data)
            if context.check or waited_s > args.timeout_s:
                return memory_fit.refusal(context, need, f"{gib(available)} GiB are available", data)
            if args.ollama != "leave" and now_s - looked_s > RECHECK_S:
                looked_s = now_s
                self._unload_again(args.timeout_s - waited_s, context)
            context.progress(available, need.bytes, unit="bytes", text="waiting for memory to be released")
            time.sleep(POLL_S)

    @staticmethod
    def _unload_again(left_s: float, context: Context) -> None:
        came = ollama_models.inspect(context, timeout_s=2).held
        if came:
            context.note(f"Ollama has reloaded {', '.join(one.model.name for one in came)}; unloading again")
            ollama_models.unload(context, timeout_s=max(1.0, left_s))
