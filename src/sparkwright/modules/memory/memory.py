from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.host.memory import footprint, memory_fit
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context, Module
from sparkwright.host.ollama import ollama_models
from sparkwright.protocol.result import Result, arg
from sparkwright.units import GIB, gib

POLL_S = 0.1
RECHECK_S = 1.0
#: how long to wait without a release, seconds, if the memory still to be released is unknown or not enough
QUIET_S = 3.0
#: smaller changes of the available memory are caused by other programs, bytes
CHANGE_BYTES = 64 * 2**20
#: memory that may be released beyond the known amount, bytes
OTHERS_BYTES = GIB // 2


class _Release:
    """Memory that is still to be released while a start waits for it.

    Args:
        stopped: what this run stopped, as `footprint.stopped_now` returns it.
        available: MemAvailable at the first look, bytes.
        now_s: of that look.
    """

    def __init__(self, stopped: Mapping[str, Any], available: int, now_s: float) -> None:
        held = stopped.get("held_bytes") if stopped else 0
        self._until = int(stopped["available_bytes"]) + int(held) if stopped and held else None if stopped else 0
        self._level, self._changed_s = available, now_s
        #: held by models that Ollama was asked to unload
        self.model_bytes = 0

    def may_do(self, need: int, available: int, now_s: float) -> bool:
        """Return whether waiting may help: what is released can be enough, or memory has come or gone lately."""
        if abs(available - self._level) > CHANGE_BYTES:
            self._level, self._changed_s = available, now_s
        if now_s - self._changed_s < QUIET_S:
            return True
        if self._until is None:
            return self.model_bytes > 0
        return max(self._until, available) + self.model_bytes + OTHERS_BYTES >= need


class Memory(Module["Memory.Args"]):
    """The memory that the engine will want is free, seen in MemAvailable: nothing else is believed on shared memory.

    The budget is that of `assert_memory_fits`, with all that is held now as one row. A container that was stopped, or a model
    that Ollama let go, gives its memory back a little later, so this waits. A model that Ollama has loaded since it was asked to
    unload is unloaded again: one in the first phase of its load is not listed, and comes after all. Where all that the stopped
    server and Ollama's models held would not be enough, it waits only while memory is being released. What still does not fit is
    refused with a table of who holds the memory and what frees it.

    Returns: budget, available_bytes, need_bytes (of the engine, on both sides), waited_s; on a refusal holders.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1; without engine_memory", default=0.0)
        needs_bytes: int = arg("what an engine without such a share takes, bytes", default=0)
        engine_memory: dict[str, Any] = arg("what it takes, as `engine_memory` in scope has it", default_factory=dict)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        timeout_s: float = arg("how long to wait for memory to be released, seconds", default=60.0)
        ollama: Literal["unload", "stop", "leave"] = arg("leave: a model that Ollama loads stays", default="unload")

    def run(self, args: Args, context: Context) -> Result:
        server = Server.of("", args.engine_memory, args.utilization, args.needs_bytes)
        found = memory_fit.of(context, server, args.reserve_gib)
        if not found.fits:
            never = f"{memory_fit.needed(server, found)}, but the host has {gib(found.total_bytes)} GiB."
            return memory_fit.refusal(context, server, found, never, {"available_bytes": found.available_bytes})
        engine_bytes = found.of("server")
        started_s = looked_s = time.monotonic()
        release: _Release | None = None
        while True:
            available = context.machine.meminfo()["MemAvailable"]
            now_s = time.monotonic()
            waited_s = now_s - started_s
            data: dict[str, Any] = {
                "available_bytes": available,
                "need_bytes": engine_bytes,
                "waited_s": round(waited_s, 2),
            }
            if available >= found.need_bytes:
                if not context.check:
                    footprint.before_start(context, available)
                now = memory_fit.of(context, server, args.reserve_gib, own=memory_fit.taken_now(context))
                data |= memory_fit.reported(context, server, now)
                needs = f"the engine needs {gib(engine_bytes)} GiB" if engine_bytes else memory_fit.UNKNOWN
                msg = f"{gib(available)} GiB available, {needs}"
                return Result(msg=msg, data=data)
            release = release or _Release(footprint.stopped_now(context), available, now_s)
            waits = waited_s <= args.timeout_s and release.may_do(found.need_bytes, available, now_s)
            if context.check or not waits:
                return self._refused(args, server, available, data, context)
            if args.ollama != "leave" and now_s - looked_s > RECHECK_S:
                looked_s = now_s
                release.model_bytes = self._unload_again(args.timeout_s - waited_s, context)
            context.progress(available, found.need_bytes, unit="bytes", text="waiting for memory to be released")
            time.sleep(POLL_S)

    @staticmethod
    def _refused(args: Args, server: Server, available: int, data: dict[str, Any], context: Context) -> Result:
        """Return the refusal of a server that does not fit beside the memory in use."""
        found = memory_fit.of(context, server, args.reserve_gib, own=memory_fit.taken_now(context))
        message = f"{memory_fit.needed(server, found)}, but {gib(available)} GiB are available."
        return memory_fit.refusal(context, server, found, message, data)

    @staticmethod
    def _unload_again(left_s: float, context: Context) -> int:
        """Unload the models that Ollama has loaded meanwhile.

        Returns the bytes that this may release; all memory if they are unknown.
        """
        seen = ollama_models.inspect(context, timeout_s=2)
        if seen.held:
            names = ", ".join(held.model.name for held in seen.held)
            context.note(f"Ollama has reloaded {names}; unloading again")
            ollama_models.unload(context, timeout_s=max(1.0, left_s))
        sizes = [held.model.size_bytes for held in seen.held]
        known = [size for size in sizes if size is not None]
        if seen.hanging or len(known) < len(sizes):
            return context.machine.meminfo()["MemTotal"]
        return sum(known)
