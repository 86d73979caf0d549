"""The memory budget of a host with everything it serves: present holders, memory to be freed, and the rest for the new server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.budget import Budget, Row
from sparkwright.host import ollama
from sparkwright.host.containers import containers, replacement
from sparkwright.host.memory import holders, memory_fit
from sparkwright.host.memory.memory_fit import PlannedServer
from sparkwright.host.module import Context
from sparkwright.units import format_gib

#: other containers with less than this are counted with the host itself
MIN_ROW_BYTES = 2**24


@dataclass(frozen=True)
class HeldMemory:
    """The memory that is in use now, bytes; None: unknown."""

    #: of the servers that are stopped for the new one, by container
    stopping: dict[str, int | None]
    #: of the host's other servers, by container
    staying: dict[str, int | None]
    #: of Ollama's models
    models: list[int | None]
    models_stay: bool
    #: other containers, such as a gateway
    rows: tuple[Row, ...]
    taken_bytes: int

    @property
    def unknown(self) -> str:
        """A sentence about unknown amounts; empty if all are known."""
        if None in self.stopping.values():
            return "memory held by the running server is unknown; checked again after it stops"
        if None in self.models:
            return "memory held by Ollama's models is unknown; checked again after they are unloaded"
        name = next((name for name, size in self.staying.items() if size is None), "")
        return f"memory held by {name} is unknown; checked again before the start" if name else ""

    @property
    def server_bytes(self) -> int:
        """Bytes held by the servers that will be stopped; an exited one holds less than was recorded."""
        rest = self.taken_bytes - self.model_bytes - _sum_known(self.staying.values())
        return min(_sum_known(self.stopping.values()), max(0, rest))

    @property
    def model_bytes(self) -> int:
        """Bytes held by Ollama's models, as far as their sizes are known."""
        return _sum_known(self.models)

    @property
    def freed_bytes(self) -> int | None:
        """Bytes that will be released; None if unknown."""
        if self.unknown:
            return None
        return self.server_bytes + (0 if self.models_stay else self.model_bytes)

    def host_row(self) -> Row | None:
        """Return the row of the host itself, including Ollama's models if they stay; None if unknown."""
        if self.freed_bytes is None:
            return None
        others = sum(row.size_bytes for row in self.rows) + _sum_known(self.staying.values())
        rest = max(0, self.taken_bytes - self.freed_bytes - others)
        stay = ", Ollama's models among it" if self.models_stay and self.model_bytes else ""
        return Row("the host itself", rest, f"what all else holds now{stay}", "host")


def _sum_known(sizes: Iterable[int | None]) -> int:
    return sum(size or 0 for size in sizes)


def compute_budget(
    context: Context,
    server: PlannedServer,
    reserve_gib: float,
    *,
    models_stay: bool,
    other_servers: Sequence[Mapping[str, Any]] = (),
    turns: Iterable[str] = (),
) -> tuple[Budget, HeldMemory]:
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
    held = _measure_held(
        context, server.name, [str(row["name"]) for row in other_servers], turns, models_stay=models_stay
    )
    others = (*_server_rows(context, server, other_servers, turns, held), *held.rows)
    return memory_fit.compute_budget(context, server, reserve_gib, others=others, host_row=held.host_row()), held


def _measure_held(
    context: Context, name: str, other_servers: Sequence[str], turns: set[str], *, models_stay: bool
) -> HeldMemory:
    memory = context.machine.meminfo()
    current = replacement.find_current(context, name)  # another recipe may have named it
    stopped = dict.fromkeys((replacement.name_of(current) if current else name, *sorted(turns)))
    remaining = [item for item in other_servers if item not in stopped]
    return HeldMemory(
        stopping={goe: holders.server_bytes(goe, context) for goe in stopped},
        staying={stay: holders.server_bytes(stay, context) for stay in remaining},
        models=[usage.model.size_bytes for usage in ollama.inspect(context).held],
        models_stay=models_stay,
        rows=tuple(_container_rows(context, {*stopped, *remaining, name})),
        taken_bytes=memory["MemTotal"] - memory["MemAvailable"],
    )


def _container_rows(context: Context, servers: set[str]) -> list[Row]:
    """Return rows of the running containers that stay and are not among these servers."""
    rows = []
    for container in containers.list_running(context):
        name = container["Names"][0].lstrip("/")
        if name in servers or name.removesuffix(containers.INTERIM_SUFFIX) in servers:
            continue
        size = (
            holders.recorded_bytes(context, container["Id"]) or holders.container_bytes(context, container["Id"]) or 0
        )
        if size > MIN_ROW_BYTES:
            rows.append(Row(f"container {name}", size, "runs beside it", "other"))
    return rows


def _server_rows(
    context: Context,
    server: PlannedServer,
    other_servers: Sequence[Mapping[str, Any]],
    turns: set[str],
    held: HeldMemory,
) -> list[Row]:
    """Return the rows of the host's other servers: the verified figures, else the server's own budget.

    Of servers that take turns, only the largest.
    """
    rows: list[Row] = []
    in_turn: list[Row] = []
    for entry in other_servers:
        row = _server_row(context, entry, held)
        (in_turn if row.name in turns or entry.get("on_demand") else rows).append(row)
    if not in_turn:
        return rows
    largest = max(in_turn, key=lambda row: row.size_bytes)
    replaced_bytes = memory_fit.engine_bytes(context, server) if server.name in turns else 0
    extra_bytes = max(0, largest.size_bytes - replaced_bytes)
    source = f"{largest.source}; the largest of those on demand"
    source += (
        f", {format_gib(replaced_bytes)} GiB of it instead of {server.name}" if replaced_bytes and extra_bytes else ""
    )
    rows += [Row(largest.name, extra_bytes, source, "other")] if extra_bytes else []
    covered = (row for row in in_turn if row is not largest or not extra_bytes)
    return rows + [Row(row.name, row.size_bytes, "on demand, instead of it", "other", at_most=True) for row in covered]


def _server_row(context: Context, server: Mapping[str, Any], held: HeldMemory) -> Row:
    name = str(server["name"])
    container = containers.inspect(context.docker(), name)
    recorded = holders.recorded_bytes(context, container["Id"]) if container else None
    if recorded is not None:
        return Row(name, recorded, "measured when it was verified", "other")
    share, needs_bytes = float(server.get("utilization") or 0), int(server.get("needs_bytes") or 0)
    size = memory_fit.engine_bytes(
        context, PlannedServer.from_scope(name, server.get("engine_memory") or {}, share, needs_bytes)
    )
    source = "by its recipe, on both sides; never measured on this host"
    return Row(name, max(size, held.staying.get(name) or 0), source, "other", assumed=True)
