from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines.budget import Budget
from sparkwright.host.memory import host_budget, host_lost, memory_fit
from sparkwright.host.memory.host_budget import Held
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib


class AssertMemoryFits(Module["AssertMemoryFits.Args"]):
    """The new server will find its memory once the previous one and Ollama's models are gone; else nothing is stopped for it.

    The budget adds up what the engine takes on the GPU's side and on the host's (as measured at its last verified start here,
    else assumed), what a cold start compiles with, the host's other servers, the host itself, and the reserve. The host itself
    holds what is taken now, without what goes: the running server (as recorded when it was verified, else as its processes show
    it) and, unless Ollama is left alone, its models. Where that is not known, `memory` sees it once the server has stopped. Of a
    host with several servers all of them must fit together, running or not; of those that share memory by turns the largest.
    Limits (/dev/shm) are shown and not added. A start with whose image and arguments the host went down before is refused, until
    a person says `--anyway`.

    Returns: budget (rows with name, size_bytes, source, assumed, at_most; need_bytes, left_bytes, total_bytes), available_bytes,
    freed_bytes (null: not known), need_bytes; on a refusal holders.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that will be stopped")
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1; without engine_memory", default=0.0)
        needs_bytes: int = arg("what an engine without such a share takes, bytes", default=0)
        engine_memory: dict[str, Any] = arg("what it takes, as `engine_memory` in scope has it", default_factory=dict)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        ollama: Literal["unload", "stop", "leave"] = arg("leave: Ollama's models stay", default="unload")
        beside: list[dict[str, Any]] = arg(
            "the host's other servers: name, utilization, needs_bytes, engine_memory, on_demand (true: it takes turns)",
            default_factory=list,
        )
        turns: list[dict[str, Any]] = arg(
            "of one that is on demand all that take turns with it, as `host.turns` holds them: the largest counts",
            default_factory=list,
        )

    def run(self, args: Args, context: Context) -> Result:
        server = Server.of(args.name, args.engine_memory, args.utilization, args.needs_bytes)
        host_lost.refuse(context, host_lost.forbids_start(context.state, server.start))
        turns = [str(turn["name"]) for turn in args.turns]
        stay = args.ollama == "leave"
        found, now = host_budget.of(
            context, server, args.reserve_gib, models_stay=stay, other_servers=args.beside, turns=turns
        )
        data: dict[str, Any] = {
            "available_bytes": found.available_bytes,
            "freed_bytes": now.freed_bytes,
            "need_bytes": found.need_bytes,
        }
        needs = memory_fit.needed(server, found)
        if not found.fits:
            return memory_fit.refusal(context, server, found, _message(server, found, now), data)
        data |= memory_fit.reported(context, server, found)
        if now.unknown:
            return Result(msg=f"{now.unknown}; {needs}", data=data)
        return Result(msg=f"{gib(found.left_bytes)} of {gib(found.total_bytes)} GiB left: {needs}", data=data)


def _message(server: Server, found: Budget, now: Held) -> str:
    """Return the message of the refusal."""
    others = [
        row.name
        for row in found.rows
        if row.about == "other" and not row.at_most and row.name in {*now.goes, *now.stays}
    ]
    if others:
        names = _listed([server.name, *others])
        return f"{names} do not fit together: that takes {gib(found.need_bytes)} of {gib(found.total_bytes)} GiB."
    needs = memory_fit.needed(server, found)
    if now.unknown or found.of("server") > found.total_bytes:
        return f"{needs}, but the host has {gib(found.total_bytes)} GiB."
    freed, available = now.freed_bytes or 0, found.available_bytes or 0
    models = 0 if now.models_stay else now.model_bytes
    will = f"{gib(available + freed)} GiB will be available"
    parts = f" ({gib(available)} now, {gib(now.server_bytes)} held by the server, {gib(models)} by Ollama)"
    return f"{needs}, but {will}{parts if freed else ''}."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
