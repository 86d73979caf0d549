from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.host.containers import replaced
from sparkwright.host.memory import held, memory_fit
from sparkwright.host.module import Context, Module
from sparkwright.host.ollama import ollama_models
from sparkwright.protocol.result import Result, arg
from sparkwright.units import gib


class AssertMemoryFits(Module["AssertMemoryFits.Args"]):
    """The new server will find its memory once the previous one and Ollama's models are gone; else nothing is stopped for it.

    What will be free is what is available now, and what goes: the running server (as recorded when it was verified, else as its
    processes show it) and, unless Ollama is left alone, its models. When what the server holds is not known nothing is
    refused: `memory` sees it once it has stopped. Of a host with several servers all of them must fit together, running or not;
    of those that share memory by turns the largest.

    Returns: available_bytes, freed_bytes (null: not known), need_bytes; on a refusal holders.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that will be stopped")
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1")
        needs_bytes: int = arg("what an engine without such a share takes, bytes", default=0)
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)
        ollama: Literal["unload", "stop", "leave"] = arg("leave: Ollama's models stay", default="unload")
        beside: list[dict[str, Any]] = arg(
            "the host's other servers: name, utilization, needs_bytes, on_demand (true: it takes turns)",
            default_factory=list,
        )
        turns: list[dict[str, Any]] = arg(
            "of one that is on demand all that take turns with it, as `host.turns` holds them: the largest counts",
            default_factory=list,
        )

    def run(self, args: Args, context: Context) -> Result:
        need = memory_fit.Need.of(context, args.utilization, args.needs_bytes, args.reserve_gib)
        if not need.possible:
            return memory_fit.never(need)
        if args.beside and (refused := self._together(args, context, need)):
            return refused
        available = context.machine.meminfo()["MemAvailable"]
        servers = [held.of_server(one, context) for one in {_stopped(args, context), *_names(args)}]
        server = None if None in servers else sum(one or 0 for one in servers)
        data = {"available_bytes": available, "freed_bytes": None, "need_bytes": need.bytes}
        if available >= need.bytes:
            return Result(msg=f"{gib(available)} GiB available, {need.sentence}", data=data)
        if server is None:
            return Result(msg="memory held by the running server is unknown; checked again after it stops", data=data)
        loaded = [one.model.size_bytes for one in ollama_models.inspect(context).held]
        taken = need.total_bytes - available - sum(size or 0 for size in loaded)
        server = min(server, max(0, taken))  # a dead one holds less than was recorded, and nothing of what Ollama has
        sizes = [] if args.ollama == "leave" else loaded
        models = sum(size or 0 for size in sizes)
        data["freed_bytes"] = freed = server + models
        will = f"{gib(available + freed)} GiB will be available"
        if available + freed >= need.bytes:
            return Result(msg=f"{will}, {need.sentence}", data=data)
        if None in sizes:
            data["freed_bytes"] = None
            unknown = "memory held by Ollama's models is unknown; checked again after they are unloaded"
            return Result(msg=unknown, data=data)
        parts = f" ({gib(available)} now, {gib(server)} held by the server, {gib(models)} by Ollama)" if freed else ""
        return memory_fit.refusal(context, need, will + parts, data)

    def _together(self, args: Args, context: Context, need: memory_fit.Need) -> Result | None:
        sizes = [
            held.of_server(name, context)
            for name in (_stopped(args, context), *(str(one["name"]) for one in args.beside))
        ]
        models = [] if args.ollama == "leave" else [one.model.size_bytes for one in ollama_models.inspect(context).held]
        taken = need.total_bytes - context.machine.meminfo()["MemAvailable"]
        known = [size for size in (*sizes, *models) if size is not None]
        others = max(0, taken - sum(known)) if len(known) == len(sizes) + len(models) else 0
        return memory_fit.together(context, need, args.name, args.beside, others, _names(args))


def _stopped(args: AssertMemoryFits.Args, context: Context) -> str:
    """The name of the container that makes room: another recipe may have named it."""
    found = replaced.current(context, args.name)
    return replaced.name_of(found) if found else args.name


def _names(args: AssertMemoryFits.Args) -> list[str]:
    return [str(one["name"]) for one in args.turns]
