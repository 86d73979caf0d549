"""Modules that check, and wait for, the memory that CPU and GPU share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines.budget import Budget
from sparkwright.host import ollama as ollama_models
from sparkwright.host.memory import holders, host_budget, host_outage, memory_fit
from sparkwright.host.memory.host_budget import HeldMemory
from sparkwright.host.memory.memory_fit import PlannedServer
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import GIB, format_gib

POLL_S = 0.1
RECHECK_INTERVAL_S = 1.0
#: if the expected release is unknown or too small, waiting ends once available memory has not changed for this long
QUIET_PERIOD_S = 3.0
#: smaller changes in available memory are attributed to other programs
MIN_CHANGE_BYTES = 64 * 2**20
#: memory that may be released in addition to the known amount
MAX_OTHER_RELEASE_BYTES = GIB // 2

#: after this time without a release, a server's unrecorded memory counts as released
SETTLE_PERIOD_S = 1.0
#: a smaller rise in available memory does not count as a release
MIN_RISE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class MemoryArgs:
    """Arguments shared by the modules that compute a server's memory budget."""

    utilization: float = arg(
        "share of MemTotal that the engine allocates, 0 to 1; used without engine_memory", default=0.0
    )
    needs_bytes: int = arg("memory of an engine that does not allocate a share, bytes", default=0)
    engine_memory: dict[str, Any] = arg(
        "the engine's memory use, in the format of the variable `engine_memory`", default_factory=dict
    )
    reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)

    def planned_server(self, name: str = "") -> PlannedServer:
        """Return the server whose memory the arguments describe. name: its container's name, if known."""
        return PlannedServer.from_scope(name, self.engine_memory, self.utilization, self.needs_bytes)


class AssertMemoryFits(Module["AssertMemoryFits.Args"]):
    """Check that the new server will have enough memory once the previous one is stopped and Ollama's models are unloaded.

    If the memory is not enough, the run is refused before anything is stopped. The budget is the sum of the engine's
    memory on the GPU and on the host (measured at its last verified start here, otherwise assumed), the peak of
    compilation in a cold start, the host's other servers, the host's own share, and the reserve. The host's own share is the
    memory in use now, minus the memory held by the server to be stopped (as recorded when it was verified, otherwise by its
    processes) and, unless `ollama` is `leave`, by Ollama's models. If one of these is unknown, `memory` checks the budget
    once the server has stopped. All servers of a host must fit together, running or not; of servers that take turns only
    the largest counts. Limits (/dev/shm) are listed but not added. If the host went down during an earlier start with the
    same image and arguments, the start is refused unless `--anyway` is given.

    Returns: budget (rows with name, size_bytes, source, about, assumed, at_most; need_bytes, left_bytes, total_bytes,
    available_bytes, kv_tokens, full_requests), available_bytes, freed_bytes (null if unknown), need_bytes (of the whole
    budget), expected_lowest_bytes (the lowest MemAvailable of the last verified start, if known); if refused, holders.
    """

    @dataclass(frozen=True, kw_only=True)
    class Args(MemoryArgs):
        name: str = arg("the container that will be stopped")
        ollama: Literal["unload", "stop", "leave"] = arg("leave: keep Ollama's models", default="unload")
        beside: list[dict[str, Any]] = arg(
            "the host's other servers: name, utilization, needs_bytes, engine_memory, on_demand (true: it takes turns)",
            default_factory=list,
        )
        turns: list[dict[str, Any]] = arg(
            "for a server on demand: the servers that take turns with it, as in `host.turns`; the largest counts",
            default_factory=list,
        )

    def run(self, args: Args, context: Context) -> Result:
        server = args.planned_server(args.name)
        host_outage.refuse_forbidden(context, host_outage.forbidden_start_reason(context.state, server.start))
        turn_servers = [str(turn["name"]) for turn in args.turns]
        models_stay = args.ollama == "leave"
        budget, held = host_budget.compute_budget(
            context,
            server,
            args.reserve_gib,
            models_stay=models_stay,
            other_servers=args.beside,
            turn_servers=turn_servers,
        )
        data: dict[str, Any] = {
            "available_bytes": budget.available_bytes,
            "freed_bytes": held.freed_bytes,
            "need_bytes": budget.need_bytes,
        }
        need_text = memory_fit.describe_need(budget)
        if not budget.fits:
            return memory_fit.refusal(context, server, budget, _refusal_message(server, budget, held), data)
        data |= memory_fit.budget_data(context, server, budget)
        if held.unknown_size_message:
            return Result(msg=f"{held.unknown_size_message}; {need_text}", data=data)
        left_text = f"{format_gib(budget.left_bytes)} of {format_gib(budget.total_bytes)} GiB left"
        return Result(msg=f"{left_text}: {need_text}", data=data)


def _refusal_message(server: PlannedServer, budget: Budget, held: HeldMemory) -> str:
    other_names = [
        row.name
        for row in budget.rows
        if row.about == "other" and not row.at_most and row.name in {*held.stopping_sizes, *held.staying_sizes}
    ]
    if other_names:
        names = f"{', '.join([server.name, *other_names[:-1]])} and {other_names[-1]}"
        need, total = format_gib(budget.need_bytes), format_gib(budget.total_bytes)
        return f"{names} do not fit together: {need} GiB needed, but the host has {total} GiB."
    need_text = memory_fit.describe_need(budget)
    if held.unknown_size_message or budget.owner_bytes("server") > budget.total_bytes:
        return f"{need_text}, but the host has {format_gib(budget.total_bytes)} GiB."
    freed_bytes, available_bytes = held.freed_bytes or 0, budget.available_bytes or 0
    model_bytes = 0 if held.models_stay else held.model_bytes
    expected_text = f"{format_gib(available_bytes + freed_bytes)} GiB will be available"
    server_text = f"{format_gib(held.server_bytes)} held by the server"
    breakdown = f" ({format_gib(available_bytes)} now, {server_text}, {format_gib(model_bytes)} by Ollama)"
    return f"{need_text}, but {expected_text}{breakdown if freed_bytes else ''}."


class _PendingRelease:
    """Memory that will be released before a start.

    Args:
        stop_record: the record of the server that this run stopped, from `holders.read_own_stop`.
        available_bytes: MemAvailable at the beginning of the wait.
    """

    def __init__(self, stop_record: Mapping[str, Any], available_bytes: int, now_s: float) -> None:
        #: MemAvailable once the stopped server has released its memory; None if unknown, 0 if no server was stopped
        self._expected_bytes: int | None = 0
        if stop_record:
            held_bytes = stop_record.get("held_bytes")
            self._expected_bytes = int(stop_record["available_bytes"]) + int(held_bytes) if held_bytes else None
        self._last_bytes, self._changed_s = available_bytes, now_s
        #: memory of the models that Ollama is unloading
        self.model_bytes = 0

    def can_help(self, need_bytes: int, available_bytes: int, now_s: float) -> bool:
        """Return True if the pending release may be enough, or if the available memory changed in the last QUIET_PERIOD_S."""
        if abs(available_bytes - self._last_bytes) > MIN_CHANGE_BYTES:
            self._last_bytes, self._changed_s = available_bytes, now_s
        if now_s - self._changed_s < QUIET_PERIOD_S:
            return True
        if self._expected_bytes is None:
            return self.model_bytes > 0
        return max(self._expected_bytes, available_bytes) + self.model_bytes + MAX_OTHER_RELEASE_BYTES >= need_bytes


class Memory(Module["Memory.Args"]):
    """Check that the engine's memory is available, according to MemAvailable, the only reliable figure with unified memory.

    The budget is that of `assert_memory_fits`, with all memory in use now as one row. A stopped container, or an unloaded
    Ollama model, releases its memory with some delay, so the module waits. If the memory of the stopped server and of
    Ollama's models cannot be enough, it waits only while memory is being released. A model that Ollama lists during the wait
    is unloaded again, because Ollama does not list a model in its first phase of loading. If the engine still does not fit,
    the run is refused, with a table of what uses the memory and the commands that free it.

    Returns: budget, available_bytes, need_bytes (of the engine, on GPU and host; if refused, of the whole budget), waited_s,
    expected_lowest_bytes (as in `assert_memory_fits`); if refused, holders.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True, kw_only=True)
    class Args(MemoryArgs):
        timeout_s: float = arg("time limit for waiting for memory to be released, seconds", default=60.0)
        ollama: Literal["unload", "stop", "leave"] = arg("leave: keep models that Ollama loads", default="unload")

    def run(self, args: Args, context: Context) -> Result:
        server = args.planned_server()
        budget = memory_fit.compute_budget(context, server, args.reserve_gib)
        if not budget.fits:
            need_text = memory_fit.describe_need(budget)
            message = f"{need_text}, but the host has {format_gib(budget.total_bytes)} GiB."
            return memory_fit.refusal(context, server, budget, message, {"available_bytes": budget.available_bytes})
        engine_bytes = budget.owner_bytes("server")
        started_s = rechecked_s = time.monotonic()
        release: _PendingRelease | None = None
        while True:
            available_bytes = context.machine.meminfo()["MemAvailable"]
            now_s = time.monotonic()
            waited_s = now_s - started_s
            data: dict[str, Any] = {
                "available_bytes": available_bytes,
                "need_bytes": engine_bytes,
                "waited_s": round(waited_s, 2),
            }
            if available_bytes >= budget.need_bytes:
                if not context.check:
                    holders.record_available(context, available_bytes)
                data |= memory_fit.budget_data(context, server, self._compute_budget(args, server, context))
                need_text = (
                    f"the engine needs {format_gib(engine_bytes)} GiB"
                    if engine_bytes
                    else memory_fit.UNKNOWN_ENGINE_MEMORY
                )
                msg = f"{format_gib(available_bytes)} GiB available, {need_text}"
                return Result(msg=msg, data=data)
            release = release or _PendingRelease(holders.read_own_stop(context), available_bytes, now_s)
            can_wait = waited_s <= args.timeout_s and release.can_help(budget.need_bytes, available_bytes, now_s)
            if context.check or not can_wait:
                budget = self._compute_budget(args, server, context)
                message = f"{memory_fit.describe_need(budget)}, but {format_gib(available_bytes)} GiB are available."
                return memory_fit.refusal(context, server, budget, message, data)
            if args.ollama != "leave" and now_s - rechecked_s > RECHECK_INTERVAL_S:
                rechecked_s = now_s
                release.model_bytes = self._unload_again(args.timeout_s - waited_s, context)
            context.progress(available_bytes, budget.need_bytes, unit="bytes", text="waiting for memory to be released")
            time.sleep(POLL_S)

    @staticmethod
    def _compute_budget(args: Args, server: PlannedServer, context: Context) -> Budget:
        host_row = memory_fit.used_memory_row(context)
        return memory_fit.compute_budget(context, server, args.reserve_gib, host_row=host_row)

    @staticmethod
    def _unload_again(remaining_s: float, context: Context) -> int:
        """Unload the models that Ollama has loaded again. Returns the bytes that this may release; MemTotal if unknown."""
        state = ollama_models.inspect(context, timeout_s=2)
        if state.held_models:
            names = ", ".join(held.model.name for held in state.held_models)
            context.note(f"Ollama has reloaded {names}; unloading again")
            ollama_models.unload_all(context, timeout_s=max(1.0, remaining_s))
        sizes = [held.model.size_bytes for held in state.held_models]
        known_sizes = [size for size in sizes if size is not None]
        if state.hanging_instances or len(known_sizes) < len(sizes):
            return context.machine.meminfo()["MemTotal"]
        return sum(known_sizes)


class WaitMemoryReleased(Module["WaitMemoryReleased.Args"]):
    """Wait until the memory of the stopped server is available again.

    MemAvailable must rise by the memory that was recorded when the server was verified, within a tolerance. Without a
    record, the module waits until no more memory is released. With unified memory, a CUDA context or memory leaked by
    the driver can outlive its process, so the module reports the processes that use the missing memory. It does not fail,
    because `memory` decides whether the next server fits, and leaked driver memory affects a restored server just as much.

    Returns: back (false: some memory is missing; null: unknown), missing_bytes, waited_s; if some is missing, holders.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        tolerance: float = arg("share of its memory that may remain unreleased, 0 to 1", default=0.05)
        timeout_s: float = arg("time limit for waiting for memory to be released, seconds", default=30.0)

    def run(self, args: Args, context: Context) -> Result:
        stop_record = holders.read_own_stop(context)
        held_bytes = stop_record.get("held_bytes")
        if context.check or not stop_record:
            return Result(msg="nothing was stopped", data=_result_data(None))
        if not held_bytes:
            released_bytes, waited_s = _wait_until_settled(context, int(stop_record["available_bytes"]), args.timeout_s)
            reason = (
                "the stopped server's memory was not recorded"
                if held_bytes is None
                else "the server held no memory when it was stopped"
            )
            msg = f"{reason}; {format_gib(released_bytes)} GiB released"
            return Result(msg=msg, data=_result_data(None, waited_s=waited_s))
        tolerated_bytes = max(held_bytes * args.tolerance, MAX_OTHER_RELEASE_BYTES)
        expected_bytes = int(stop_record["available_bytes"] + held_bytes - tolerated_bytes)
        started_s = time.monotonic()
        while True:
            available_bytes = context.machine.meminfo()["MemAvailable"]
            waited_s = round(time.monotonic() - started_s, 2)
            if available_bytes >= expected_bytes:
                return Result(msg=f"released {format_gib(held_bytes)} GiB", data=_result_data(True, waited_s=waited_s))
            if waited_s > args.timeout_s:
                break
            context.progress(
                max(0, available_bytes - stop_record["available_bytes"]), held_bytes, unit="bytes", text="released"
            )
            time.sleep(POLL_S)
        missing_bytes = stop_record["available_bytes"] + held_bytes - available_bytes
        memory_holders = holders.inspect(context)
        missing = f"{format_gib(missing_bytes)} of the stopped server's {format_gib(held_bytes)} GiB"
        msg = f"{missing} not released within {args.timeout_s:g} s"
        context.note(msg)
        for line in holders.format_table(memory_holders):
            context.note(line)
        return Result(msg=msg, data={**_result_data(False, missing_bytes, waited_s), "holders": memory_holders})


def _wait_until_settled(context: Context, available_bytes_before: int, timeout_s: float) -> tuple[int, float]:
    """Wait until no more memory is released. Returns the released bytes, and the seconds waited."""
    started_s = last_rise_s = time.monotonic()
    highest_bytes = available_bytes_before
    while True:
        available_bytes, now_s = context.machine.meminfo()["MemAvailable"], time.monotonic()
        if available_bytes > highest_bytes + MIN_RISE_BYTES:
            highest_bytes, last_rise_s = available_bytes, now_s
        if now_s - last_rise_s >= SETTLE_PERIOD_S or now_s - started_s >= timeout_s:
            return max(0, available_bytes - available_bytes_before), round(now_s - started_s, 2)
        time.sleep(POLL_S)


def _result_data(released: bool | None, missing_bytes: int = 0, waited_s: float = 0.0) -> dict[str, object]:
    return {"back": released, "missing_bytes": missing_bytes, "waited_s": waited_s}
