"""The memory budget of a host with all its servers: memory in use, memory to be freed, and what is left for a new server."""

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

#: a container with less memory gets no row of its own and counts as part of the host's row
MIN_ROW_BYTES = 2**24


@dataclass(frozen=True)
class HeldMemory:
    """The memory in use on a host, in bytes; None for unknown sizes."""

    #: sizes of the servers that will be stopped for the new one, by container name
    stopping_sizes: dict[str, int | None]
    #: sizes of the host's other servers, by container name
    staying_sizes: dict[str, int | None]
    #: sizes of Ollama's models
    model_sizes: list[int | None]
    #: Ollama's models are not unloaded
    models_stay: bool
    #: other containers, such as a gateway
    rows: tuple[Row, ...]
    #: total memory in use
    used_bytes: int

    @property
    def unknown_size_message(self) -> str:
        """A message about the first unknown size, or "" if all sizes are known."""
        if None in self.stopping_sizes.values():
            return "memory held by the running server is unknown; checked again after it stops"
        if None in self.model_sizes:
            return "memory held by Ollama's models is unknown; checked again after they are unloaded"
        name = next((name for name, size in self.staying_sizes.items() if size is None), "")
        return f"memory held by {name} is unknown; checked again before the start" if name else ""

    @property
    def server_bytes(self) -> int:
        """Bytes held by the servers that will be stopped; less than recorded if a server has exited."""
        remaining_bytes = self.used_bytes - self.model_bytes - _sum_known(self.staying_sizes.values())
        return min(_sum_known(self.stopping_sizes.values()), max(0, remaining_bytes))

    @property
    def model_bytes(self) -> int:
        """Bytes held by Ollama's models whose sizes are known."""
        return _sum_known(self.model_sizes)

    @property
    def freed_bytes(self) -> int | None:
        """Bytes that will be released; None if unknown."""
        if self.unknown_size_message:
            return None
        return self.server_bytes + (0 if self.models_stay else self.model_bytes)

    def host_row(self) -> Row | None:
        """Return the row of the host itself, including Ollama's models if they stay; None if unknown."""
        if self.freed_bytes is None:
            return None
        other_bytes = sum(row.size_bytes for row in self.rows) + _sum_known(self.staying_sizes.values())
        host_bytes = max(0, self.used_bytes - self.freed_bytes - other_bytes)
        ollama_text = ", including Ollama's models" if self.models_stay and self.model_bytes else ""
        return Row("the host itself", host_bytes, f"all other memory in use now{ollama_text}", "host")


def _sum_known(sizes: Iterable[int | None]) -> int:
    return sum(size or 0 for size in sizes)


def compute_budget(
    context: Context,
    server: PlannedServer,
    reserve_gib: float,
    *,
    models_stay: bool,
    other_servers: Sequence[Mapping[str, Any]] = (),
    turn_servers: Iterable[str] = (),
) -> tuple[Budget, HeldMemory]:
    """Return the budget of a server's start, and the memory in use now.

    Args:
        server: the server to start, which replaces the current container.
        reserve_gib: memory that must stay free, GiB.
        models_stay: Ollama's models are not unloaded.
        other_servers: the host's other servers: name, utilization, needs_bytes, engine_memory, on_demand.
        turn_servers: names of the containers that take turns with the server; empty if the server is always on.
    """
    turn_servers = set(turn_servers)
    held = _measure_held(
        context, server.name, [str(row["name"]) for row in other_servers], turn_servers, models_stay=models_stay
    )
    others = (*_server_rows(context, server, other_servers, turn_servers, held), *held.rows)
    return memory_fit.compute_budget(context, server, reserve_gib, others=others, host_row=held.host_row()), held


def _measure_held(
    context: Context, name: str, other_servers: Sequence[str], turn_servers: set[str], *, models_stay: bool
) -> HeldMemory:
    memory = context.machine.meminfo()
    current_container = replacement.find_current(context, name)  # its name differs if another recipe started it
    stopping_servers = dict.fromkeys(
        (containers.name_of(current_container) if current_container else name, *sorted(turn_servers))
    )
    staying_servers = [other for other in other_servers if other not in stopping_servers]
    return HeldMemory(
        stopping_sizes={server: holders.server_bytes(server, context) for server in stopping_servers},
        staying_sizes={server: holders.server_bytes(server, context) for server in staying_servers},
        model_sizes=[usage.model.size_bytes for usage in ollama.inspect(context).held_models],
        models_stay=models_stay,
        rows=tuple(_container_rows(context, {*stopping_servers, *staying_servers, name})),
        used_bytes=memory["MemTotal"] - memory["MemAvailable"],
    )


def _container_rows(context: Context, servers: set[str]) -> list[Row]:
    """Return a row for each running container except these servers."""
    rows = []
    for container in containers.list_running(context):
        name, container_id = containers.name_of(container), container["Id"]
        if name in servers or name.removesuffix(containers.INTERIM_SUFFIX) in servers:
            continue
        size_bytes = holders.recorded_bytes(context, container_id) or holders.container_bytes(context, container_id)
        if size_bytes and size_bytes > MIN_ROW_BYTES:
            rows.append(Row(f"container {name}", size_bytes, "keeps running", "other"))
    return rows


def _server_rows(
    context: Context,
    server: PlannedServer,
    other_servers: Sequence[Mapping[str, Any]],
    turn_servers: set[str],
    held: HeldMemory,
) -> list[Row]:
    """Return the rows of the host's other servers. Of the on-demand servers, which take turns, only the largest counts."""
    rows: list[Row] = []
    on_demand_rows: list[Row] = []
    for other in other_servers:
        row = _server_row(context, other, held)
        (on_demand_rows if row.name in turn_servers or other.get("on_demand") else rows).append(row)
    if not on_demand_rows:
        return rows
    largest_row = max(on_demand_rows, key=lambda row: row.size_bytes)
    replaced_bytes = memory_fit.engine_bytes(context, server) if server.name in turn_servers else 0
    extra_bytes = max(0, largest_row.size_bytes - replaced_bytes)
    if extra_bytes:
        source = f"{largest_row.source}; the largest of those on demand"
        if replaced_bytes:
            source += f", less {format_gib(replaced_bytes)} GiB of {server.name}, which it replaces"
        rows.append(Row(largest_row.name, extra_bytes, source, "other"))
    covered_rows = (row for row in on_demand_rows if row is not largest_row or not extra_bytes)
    return rows + [Row(row.name, row.size_bytes, "on demand, in turn", "other", at_most=True) for row in covered_rows]


def _server_row(context: Context, server: Mapping[str, Any], held: HeldMemory) -> Row:
    """Return a server's row, with the size measured when it was verified, or else the estimate from its recipe."""
    name = str(server["name"])
    container = containers.inspect(context.docker(), name)
    recorded_bytes = holders.recorded_bytes(context, container["Id"]) if container else None
    if recorded_bytes is not None:
        return Row(name, recorded_bytes, "measured when it was verified", "other")
    share, needs_bytes = float(server.get("utilization") or 0), int(server.get("needs_bytes") or 0)
    planned = PlannedServer.from_scope(name, server.get("engine_memory") or {}, share, needs_bytes)
    size_bytes = max(memory_fit.engine_bytes(context, planned), held.staying_sizes.get(name) or 0)
    return Row(name, size_bytes, "estimated from its recipe; never measured on this host", "other", assumed=True)
