"""Whether an engine fits into a host's memory, and the refusal with its table when it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Exit
from sparkwright.host.memory import holders
from sparkwright.host.module import Context
from sparkwright.protocol.result import Result
from sparkwright.units import GIB, gib

LOWER = "Free memory, or lower gpu-memory-utilization in the recipe."
#: of an engine that takes no share: what it needs follows from its model and its context
SHORTER = "Free memory, or serve a smaller model or a shorter context."


#: of an engine whose memory nobody tells
UNKNOWN = "what the engine takes is unknown"


@dataclass(frozen=True, slots=True)
class Need:
    """total_bytes: MemTotal, read on this host. engine_bytes: utilization x MemTotal, as the engine counts it, or what it needs
    whatever that is. reserve_bytes: what must stay free beside it. fix: what helps when it does not fit."""

    total_bytes: int
    engine_bytes: int
    reserve_bytes: int
    fix: str = LOWER

    @classmethod
    def of(cls, context: Context, utilization: float, needs_bytes: int, reserve_gib: float) -> Need:
        """What an engine with this share of memory, or that needs so many bytes, needs here."""
        total = context.machine.meminfo()["MemTotal"]
        takes = int(utilization * total) + needs_bytes
        return cls(total, takes, int(reserve_gib * GIB), SHORTER if needs_bytes else LOWER)

    @property
    def bytes(self) -> int:
        return self.engine_bytes + self.reserve_bytes

    @property
    def possible(self) -> bool:
        """Whether it fits at all, on an empty host."""
        return self.bytes <= self.total_bytes

    @property
    def sentence(self) -> str:
        """What is needed, after what is there."""
        if not self.engine_bytes:
            return f"{UNKNOWN}; {self.reserve_bytes / GIB:g} GiB reserve needed"
        return f"{gib(self.bytes)} GiB needed"

    def __str__(self) -> str:
        if not self.engine_bytes:
            return f"{self.reserve_bytes / GIB:g} GiB reserve; {UNKNOWN}"
        return f"{gib(self.engine_bytes)} GiB for the engine and {self.reserve_bytes / GIB:g} GiB reserve"


def together(
    context: Context,
    need: Need,
    name: str,
    beside: Sequence[Mapping[str, Any]],
    others_bytes: int,
    turns: Collection[str] = (),
) -> Result | None:
    """The refusal of what would not fit beside the host's other servers, with the table of them all; None: it fits.

    name: of the server. beside: those other servers, with name, utilization, needs_bytes, on_demand. others_bytes: what stays
    held by all that is no server of these. turns: the containers that the server shares memory with by turns. Of all on demand
    the largest counts.
    """
    turns = {*turns, *(str(one["name"]) for one in beside if one.get("on_demand"))}
    every = [(name, need.engine_bytes), *((str(one["name"]), _bytes(one, need.total_bytes)) for one in beside)]
    by_turns = sorted((one for one in every if one[0] in turns), key=lambda one: -one[1])
    sizes = [one for one in every if one[0] not in turns] + by_turns[:1]
    taken = sum(size for _, size in sizes) + need.reserve_bytes + others_bytes
    if len(sizes) < 2 or taken <= need.total_bytes:
        return None
    available = context.machine.meminfo()["MemAvailable"]
    rows = [(one, gib(size), "the largest of those on demand" if one in turns else "") for one, size in sizes]
    rows += [(one, f"({gib(size)})", "on demand, instead of it") for one, size in by_turns[1:]]
    more = [("reserve", need.reserve_bytes), ("all else on the host", others_bytes), ("together", taken)]
    rows += [(one, gib(size), "") for one, size in more]
    rows.append(("this host has", gib(need.total_bytes), f"{gib(available)} available now"))
    width = max(len(one) for one, _, _ in rows)
    first, last = ", ".join(one for one, _ in sizes[:-1]), sizes[-1][0]
    of = f"{gib(taken)} of {gib(need.total_bytes)} GiB with the reserve and all else on the host"
    return Result(
        failed=True,
        exit=Exit.REFUSED,
        msg=f"{first} and {last} do not fit together: that takes {of}.",
        fix="Give one a smaller share of memory in its recipe, or serve one of them on another host.",
        data={
            "available_bytes": available,
            "freed_bytes": None,
            "need_bytes": taken,
            "evidence": [f"{one:<{width}}  {size:>6} GiB  {note}".rstrip() for one, size, note in rows],
        },
    )


def _bytes(one: Mapping[str, Any], total_bytes: int) -> int:
    return int(float(one.get("utilization") or 0) * total_bytes) + int(one.get("needs_bytes") or 0)


def never(need: Need) -> Result:
    """The refusal of what would not fit into an empty host."""
    takes = f"the engine would take {gib(need.engine_bytes)} of {gib(need.total_bytes)} GiB"
    msg = f"{takes}, but {need.reserve_bytes / GIB:g} GiB must stay free."
    return Result(failed=True, exit=Exit.REFUSED, msg=msg, fix=need.fix)


def refusal(context: Context, need: Need, message: str, data: dict[str, Any]) -> Result:
    """The refusal with the table of who holds the memory. message: how much there is, as a clause."""
    rows = holders.inspect(context)
    msg = f"{gib(need.bytes)} GiB needed ({need}), but {message}."
    return Result(
        failed=True,
        exit=Exit.REFUSED,
        msg=msg,
        fix=need.fix,
        data={**data, "need_bytes": need.bytes, "holders": rows, "evidence": holders.table(rows)},
    )
