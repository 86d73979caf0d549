"""The memory budget of a host with everything it serves: present holders, memory to be freed, and the rest for the new server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.budget import Budget, Row
from sparkwright.host import ollama
from sparkwright.host.containers import containers, replacement
from sparkwright.host.memory import holders, memory_fit
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context
from sparkwright.units import gib

#: other containers with less than this are counted with the host itself
SMALLEST_BYTES = 2**24


@dataclass(frozen=True)
class Held:
    """The memory that is in use now, bytes; None: unknown."""

    #: of the servers that are stopped for the new one, by container
    goes: dict[str, int | None]
    #: of the host's other servers, by container
    stays: dict[str, int | None]
    #: of Ollama's models
    models: list[int | None]
    models_stay: bool
    #: other containers, such as a gateway
    rows: tuple[Row, ...]
    taken_bytes: int

    @property
    def unknown(self) -> str:
        """A sentence about unknown amounts; empty if all are known."""
        if None in self.goes.values():
            return "memory held by the running server is unknown; checked again after it stops"
        if None in self.models:
            return "memory held by Ollama's models is unknown; checked again after they are unloaded"
        name = next((name for name, size in self.stays.items() if size is None), "")
        return f"memory held by {name} is unknown; checked again before the start" if name else ""

    @property
    def server_bytes(self) -> int:
        """Bytes held by the servers that will be stopped; an exited one holds less than was recorded."""
        rest = self.taken_bytes - self.model_bytes - _sum(self.stays.values())
        return min(_sum(self.goes.values()), max(0, rest))

    @property
    def model_bytes(self) -> int:
        """Bytes held by Ollama's models, as far as their sizes are known."""
        return _sum(self.models)

    @property
    def freed_bytes(self) -> int | None:
        """Bytes that will be released; None if unknown."""
        if self.unknown:
            return None
        return self.server_bytes + (0 if self.models_stay else self.model_bytes)

    def own(self) -> Row | None:
        """Return the row of the host itself, including Ollama's models if they stay; None if unknown."""
        if self.freed_bytes is None:
            return None
        others = sum(row.size_bytes for row in self.rows) + _sum(self.stays.values())
        rest = max(0, self.taken_bytes - self.freed_bytes - others)
        stay = ", Ollama's models among it" if self.models_stay and self.model_bytes else ""
        return Row("the host itself", rest, f"what all else holds now{stay}", "host")


def _sum(sizes: Iterable[int | None]) -> int:
    return sum(size or 0 for size in sizes)


def of(
    context: Context,
    server: Server,
    reserve_gib: float,
    *,
    models_stay: bool,
    other_servers: Sequence[Mapping[str, Any]] = (),
    turns: Iterable[str] = (),
) -> tuple[Budget, Held]:
    """Return the budget of a server's start, and the memory in use now.

    Args:
        context: Of the run.
        server: The server to start; the container in its place is stopped for it.
        reserve_gib: Memory that must stay free, GiB.
        models_stay: Ollama's models are left alone.
        other_servers: The host's other servers: name, utilization, needs_bytes, engine_memory, on_demand.
        turns: The containers with which the server takes turns; empty for one that is always on.
    """
    turns = set(turns)
    now = _held(context, server.name, [str(row["name"]) for row in other_servers], turns, models_stay=models_stay)
    others = (*_others(context, server, other_servers, turns, now), *now.rows)
    return memory_fit.of(context, server, reserve_gib, others=others, own=now.own()), now


def _held(context: Context, name: str, other_servers: Sequence[str], turns: set[str], *, models_stay: bool) -> Held:
    memory = context.machine.meminfo()
    found = replacement.current(context, name)  # another recipe may have named it
    goes = dict.fromkeys((replacement.name_of(found) if found else name, *sorted(turns)))
    stays = [item for item in other_servers if item not in goes]
    return Held(
        goes={goe: holders.of_server(goe, context) for goe in goes},
        stays={stay: holders.of_server(stay, context) for stay in stays},
        models=[usage.model.size_bytes for usage in ollama.inspect(context).held],
        models_stay=models_stay,
        rows=tuple(_containers(context, {*goes, *stays, name})),
        taken_bytes=memory["MemTotal"] - memory["MemAvailable"],
    )


def _containers(context: Context, servers: set[str]) -> list[Row]:
    """Return rows of the running containers that stay and are not among these servers."""
    rows = []
    for found in containers.running_rows(context):
        name = found["Names"][0].lstrip("/")
        if name in servers or name.removesuffix(containers.INTERIM) in servers:
            continue
        size = holders.recorded_share(context, found["Id"]) or holders.of_container(context, found["Id"]) or 0
        if size > SMALLEST_BYTES:
            rows.append(Row(f"container {name}", size, "runs beside it", "other"))
    return rows


def _others(
    context: Context, server: Server, other_servers: Sequence[Mapping[str, Any]], turns: set[str], now: Held
) -> list[Row]:
    """Return the rows of the host's other servers: the verified figures, else the server's own budget.

    Of servers that take turns, only the largest.
    """
    rows: list[Row] = []
    in_turn: list[Row] = []
    for entry in other_servers:
        row = _other(context, entry, now)
        (in_turn if row.name in turns or entry.get("on_demand") else rows).append(row)
    if not in_turn:
        return rows
    largest = max(in_turn, key=lambda row: row.size_bytes)
    instead = memory_fit.engine_bytes(context, server) if server.name in turns else 0
    more = max(0, largest.size_bytes - instead)
    source = f"{largest.source}; the largest of those on demand"
    source += f", {gib(instead)} GiB of it instead of {server.name}" if instead and more else ""
    rows += [Row(largest.name, more, source, "other")] if more else []
    quiet = (row for row in in_turn if row is not largest or not more)
    return rows + [Row(row.name, row.size_bytes, "on demand, instead of it", "other", at_most=True) for row in quiet]


def _other(context: Context, server: Mapping[str, Any], now: Held) -> Row:
    name = str(server["name"])
    found = containers.inspect(context.docker(), name)
    recorded = holders.recorded_share(context, found["Id"]) if found else None
    if recorded is not None:
        return Row(name, recorded, "measured when it was verified", "other")
    share, needs_bytes = float(server.get("utilization") or 0), int(server.get("needs_bytes") or 0)
    size = memory_fit.engine_bytes(context, Server.of(name, server.get("engine_memory") or {}, share, needs_bytes))
    source = "by its recipe, on both sides; never measured on this host"
    return Row(name, max(size, now.stays.get(name) or 0), source, "other", assumed=True)
