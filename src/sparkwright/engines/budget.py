"""Memory budget of a start: rows that add up to the memory that a host must have, each with its source. Pure; the same on laptop
and host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines.advice import Platform
from sparkwright.engines.findings import Finding, Rules, Way
from sparkwright.engines.memory import COMPILE_BYTES, HOST_SIDE_BYTES, Memory
from sparkwright.errors import SparkwrightError
from sparkwright.trust.bounds import MAX_NUMBER
from sparkwright.trust.container_option_rules import parse_size
from sparkwright.trust.shapes import line, number_between, validate
from sparkwright.units import GIB, MINUTE_FORMAT, format_gib, format_time

#: owner of a row: the server to start, other servers, the host itself
RowOwner = Literal["server", "other", "host"]
HOST_SIDE = "host's side"
#: the assumed host's side is at most MemTotal / 17: it was never measured on a machine smaller than a GB10
HOST_SIDE_DIVISOR = 17
#: smaller weights have no row of their own
MIN_SHOWN_BYTES = GIB // 20
ASSUMED_NOTE = "assumed, never measured on this host"


_COUNT_SHAPE = number_between(0, MAX_NUMBER)
ROW_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("name", "source"), line),
    "size_bytes": _COUNT_SHAPE,
    "about": frozenset(("server", "other", "host")),
    **dict.fromkeys(("assumed", "at_most"), bool),
}
#: shape of a budget as JSON, without its sums
BUDGET_SHAPE: dict[str, Any] = {
    "total_bytes": _COUNT_SHAPE,
    "rows": [ROW_SHAPE],
    **dict.fromkeys(("available_bytes", "kv_tokens", "full_requests"), (None, _COUNT_SHAPE)),
}
#: shape with the sums, as programs get it
BUDGET_JSON_SHAPE: dict[str, Any] = {
    **BUDGET_SHAPE,
    "need_bytes": _COUNT_SHAPE,
    "left_bytes": number_between(-MAX_NUMBER, MAX_NUMBER),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    name: str
    size_bytes: int
    #: source of the size, as a clause
    source: str
    about: RowOwner = "server"
    #: neither measured nor documented: a figure on the safe side
    assumed: bool = False
    #: a limit for growth, shown but not added
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """Figures of an earlier verified start on the same host; see host/records/start_memory.py."""

    host_bytes: int | None = None
    #: bytes on the GPU's side: the larger of the engine's log and its memory model
    gpu_bytes: int | None = None
    peak_bytes: int = 0
    #: time of that start, seconds since the epoch
    at: float = 0.0
    #: image, model and arguments are the same; else only the image is
    same: bool = True
    kv_tokens: int | None = None
    full_requests: float | None = None

    @property
    def source(self) -> str:
        """The source of the figures, as a clause."""
        qualifier = "" if self.same else " with another model or other arguments of this image"
        return f"measured {format_time(self.at, MINUTE_FORMAT)}{qualifier}"


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Facts about a start beyond its engine's memory model."""

    #: the last similar verified start
    learned: MeasuredStart | None = None
    #: the last similar cold start whose compile cache is gone
    learned_cold: MeasuredStart | None = None
    #: the compile cache of an earlier start is there
    warm: bool = False
    #: limit of its /dev/shm, bytes; 0 for none; see shm_source
    shm_bytes: int = 0
    shm_source: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory budget of a start."""

    #: MemTotal
    total_bytes: int
    rows: tuple[Row, ...]
    #: MemAvailable when the budget was made; None on a laptop
    available_bytes: int | None = None
    #: tokens in the KV cache, and requests of full length that fit in it, at the last start
    kv_tokens: int | None = None
    full_requests: float | None = None

    @property
    def need_bytes(self) -> int:
        """The sum of all rows that are not limits."""
        return sum(row.size_bytes for row in self.rows if not row.at_most)

    @property
    def left_bytes(self) -> int:
        """The bytes left beyond the reserve; below 0 the server does not fit."""
        return self.total_bytes - self.need_bytes

    @property
    def limits_bytes(self) -> int:
        """The bytes that the server may use beyond `need_bytes` while it serves."""
        return sum(row.size_bytes for row in self.rows if row.at_most and row.about == "server")

    @property
    def fits(self) -> bool:
        """True if the rows add up to no more than the host has."""
        return self.left_bytes >= 0

    def of(self, about: RowOwner) -> int:
        """Return the bytes of one kind of rows, without limits."""
        return sum(row.size_bytes for row in self.rows if row.about == about and not row.at_most)

    def lines(self) -> list[str]:
        """Return the table as text: size in GiB, purpose and source."""
        width = max((len(row.name) for row in self.rows), default=0)
        left = f"{format_gib(self.left_bytes)} left" if self.fits else f"{format_gib(-self.left_bytes)} too much"
        now = f", {format_gib(self.available_bytes)} available now" if self.available_bytes is not None else ""
        rows = [*map(_format_cells, self.rows), (format_gib(self.need_bytes), "together", left)]
        rows.append((format_gib(self.total_bytes), "MemTotal", f"this host{now}"))
        width = max(width, len("together"))
        table = [f"{'GiB':>7}  {'memory':<{width}}  source"]
        return (
            table
            + [f"{size:>7}  {name:<{width}}  {source}".rstrip() for size, name, source in rows]
            + self._kv_cache_lines()
        )

    def _kv_cache_lines(self) -> list[str]:
        if not self.kv_tokens:
            return []
        requests = f", {self.full_requests:g} requests of full length at once" if self.full_requests else ""
        return [f"The KV cache held {self.kv_tokens} tokens at its last start{requests}."]

    def to_json(self) -> dict[str, Any]:
        """Return the budget as plain JSON, for events, `--json` and the API."""
        return {
            "total_bytes": self.total_bytes,
            "need_bytes": self.need_bytes,
            "left_bytes": self.left_bytes,
            "available_bytes": self.available_bytes,
            "kv_tokens": self.kv_tokens,
            "full_requests": self.full_requests,
            "rows": [asdict(row) for row in self.rows],
        }

    @classmethod
    def of_json(cls, data: Any) -> Budget:
        """Return the budget that `to_json` made. Raises ValueError for any other value."""
        data_fields = validate(data, BUDGET_SHAPE, "budget")
        rows = tuple(Row(**{name: row[name] for name in ROW_SHAPE}) for row in data_fields["rows"])
        return cls(
            data_fields["total_bytes"],
            rows,
            data_fields["available_bytes"],
            data_fields["kv_tokens"],
            data_fields["full_requests"],
        )


def _format_cells(row: Row) -> tuple[str, str, str]:
    source = f"{ASSUMED_NOTE}: {row.source}" if row.assumed and row.name == HOST_SIDE else row.source
    source = f"assumed: {source}" if row.assumed and row.name != HOST_SIDE else source
    return (
        (f"({format_gib(row.size_bytes)})", row.name, f"at most: {source}")
        if row.at_most
        else (format_gib(row.size_bytes), row.name, source)
    )


def build(
    memory: Memory,
    total_bytes: int,
    start: StartFacts,
    *,
    reserve_bytes: int,
    others: Sequence[Row] = (),
    own: Row | None = None,
    available_bytes: int | None = None,
) -> Budget:
    """Return the budget of one start.

    Args:
        memory: The engine's memory model.
        total_bytes: MemTotal of the host.
        start: Facts about this start.
        reserve_bytes: Memory that must stay free.
        others: Rows of other servers on the host.
        own: The row of the host itself; None if not known.
        available_bytes: MemAvailable now.
    """
    rows = list(engine_rows(memory, total_bytes, start))
    rows += _start_check_rows(
        memory, total_bytes, sum(row.size_bytes for row in rows if not row.at_most) + reserve_bytes
    )
    rows += [*others, *([own] if own else ())]
    rows.append(Row("reserve", reserve_bytes, "reserve_gib", "host"))
    learned = start.learned if start.learned and start.learned.same else MeasuredStart()
    tokens = learned.kv_tokens, learned.full_requests
    return Budget(total_bytes, tuple(rows), available_bytes, *tokens)


def engine_rows(memory: Memory, total_bytes: int, start: StartFacts) -> Iterator[Row]:
    """Yield the rows of the server itself: its engine on both sides, its compile peak, its /dev/shm."""
    yield from _share_rows(memory, total_bytes)
    for part in memory.parts:
        if not part.host:
            when = ", taken as it serves" if part.later else ""
            yield Row(part.name, part.size_bytes, f"{part.source}{when}", assumed=part.assumed)
    learned = start.learned
    if learned is not None and learned.same and (learned.gpu_bytes or 0) > memory.gpu_bytes(total_bytes):
        extra = (learned.gpu_bytes or 0) - memory.gpu_bytes(total_bytes)
        yield Row("beyond that on the GPU", extra, f"CUDA graphs, say: by its log, {learned.source}")
    yield from _host_side_rows(memory, total_bytes, start)
    if memory.compiles:
        yield _compile_row(memory, total_bytes, start)
    if start.shm_bytes:
        yield Row("/dev/shm", start.shm_bytes, start.shm_source, at_most=True)


def _share_rows(memory: Memory, total_bytes: int) -> Iterator[Row]:
    if not memory.share:
        return
    share_bytes = int(memory.share * total_bytes)
    source = f"{memory.flag or 'its share'} {memory.share:g} of {format_gib(total_bytes)} GiB"
    weights_bytes = memory.weights_bytes if MIN_SHOWN_BYTES <= memory.weights_bytes < share_bytes else 0
    if weights_bytes:
        yield Row("weights", weights_bytes, memory.weights_source)
        source = f"{source}, less the weights"
    yield Row("KV cache and computation" if weights_bytes else "GPU's side", share_bytes - weights_bytes, source)


def _host_side_rows(memory: Memory, total_bytes: int, start: StartFacts) -> Iterator[Row]:
    learned = start.learned
    if learned is not None and learned.host_bytes is not None:
        yield Row(HOST_SIDE, learned.host_bytes, learned.source)
    elif memory.host_bytes:
        size = min(memory.host_bytes, total_bytes // HOST_SIDE_DIVISOR)
        yield Row(HOST_SIDE, size, "5.4 to 6.7 GiB elsewhere", assumed=True)
    else:
        yield from (
            Row(HOST_SIDE, part.size_bytes, part.source, assumed=part.assumed) for part in memory.parts if part.host
        )


def _compile_row(memory: Memory, total_bytes: int, start: StartFacts) -> Row:
    """Return the row for the temporary peak of a cold start, which compiles before its KV cache exists."""
    name = "compile peak"
    if start.warm:
        return Row(name, 0, "the compile cache is warm")
    cold = start.learned_cold
    if cold is not None and cold.same:
        return Row(name, cold.peak_bytes, f"a cold start, {cold.source}")
    weights = memory.weights_bytes
    peak = max(0, weights + min(weights, COMPILE_BYTES) - memory.gpu_bytes(total_bytes))
    return Row(name, peak, "a cold start compiles before it takes its KV cache", assumed=True)


def _start_check_rows(memory: Memory, total_bytes: int, counted_bytes: int) -> list[Row]:
    """Return a row for memory that must be available at a start beyond what is counted, though the engine does not take it."""
    missing = int(memory.start_share * total_bytes) - counted_bytes
    source = f"the engine wants {memory.start_share:g} of {format_gib(total_bytes)} GiB available, and does not take it"
    return [Row("start-up check", missing, source)] if missing > 0 else []


def format_largest_fit(memory: Memory, budget: Budget) -> str:
    """Return the flag and its largest value with which a too large server fits, as "FLAG VALUE"; empty if none does."""
    fit = memory.largest_fit(budget.total_bytes, memory.engine_bytes(budget.total_bytes) + budget.left_bytes)
    return f"{fit[0]} {fit[1]:g}" if fit else ""


#: MemTotal of a GB10 of 2026; 119.7 GiB on one of 2025
GB10_BYTES = int(121.7 * GIB)
#: DGX OS, its desktop and the driver, before anything is served
SYSTEM_ROW = Row("the system", 6 * GIB, "DGX OS, its desktop and the driver", "host", assumed=True)
#: proposed size of /dev/shm: a server on one GPU exchanges little there
SHM_SIZE, SHM_BYTES = "1gb", GIB
GB10_SOURCE = "reports of GB10 users"


@dataclass(frozen=True)
class BudgetCase:
    """The input of the rule: an engine's memory model, and the container's options by their names in a recipe."""

    memory: Memory
    container: Mapping[str, Any] = field(default_factory=dict)
    platform: Platform = "gb10"


RULES: Rules[BudgetCase, BudgetCase] = Rules(describe_example=lambda case: {"container": case.container})
rule = RULES.rule


@rule(
    "memory-budget",
    sources=(
        "vllm #46307, #56824: starts at 0.70 took 112 and 119 of 121.7 GiB, and the host hung",
        "llamastash PR 81: 5.4 to 6.7 GiB on the host's side of the engine, on top of its share",
        "sgl-project/sglang #34872: 0.95 on a Spark; 0.75 swapped while graphs were captured, 0.70 held",
        "hasso5703/dgx-spark-qwen38 #2: 0.95 froze hosts while graphs were captured",
        "tonyd2wild #31: /dev/shm is the same memory; 10 GB did for a worker",
    ),
    example=BudgetCase(
        Memory(share=0.9, flag="gpu-memory-utilization", value=0.9, host_bytes=HOST_SIDE_BYTES), {"shm_size": "64gb"}
    ),
)
def memory_budget(case: BudgetCase) -> Iterator[Finding]:
    """A server must leave the host its memory reserve.
    On a GB10 CPU and GPU share 119.7 to 121.7 GiB. An engine takes its share of all of it, and its processes, CUDA's context and
    the driver take 5 to 7 GiB more on the host's side; what is written to /dev/shm is the same memory, up to `shm_size`. What is
    missing then is missing for the system, up to the loss of sshd: no limit of Docker sees what CUDA takes.
    """
    if case.platform != "gb10" or not case.memory.known:
        return
    shm_bytes = _shm_bytes(case.container)
    budget = on_gb10(case.memory, shm_bytes)
    excess_bytes = budget.need_bytes + shm_bytes - budget.total_bytes
    if excess_bytes <= 0:
        return
    parts = f"{format_gib(budget.of('server'))} GiB for the engine on both sides, {format_gib(SYSTEM_ROW.size_bytes)} of the system, {RESERVE_GIB} reserve"
    parts += f", {format_gib(shm_bytes)} in /dev/shm" if shm_bytes else ""
    subject = f"{case.memory.flag} {case.memory.value:g}" if case.memory.flag else "what it takes"
    sentence = f"{subject} leaves too little of the shared memory for the host: {parts} are {format_gib(excess_bytes)} GiB more than a GB10 has."
    flag = "container.shm_size" if excess_bytes <= shm_bytes - SHM_BYTES else case.memory.flag
    yield Finding(
        "warning", sentence, tuple(_list_ways(case.memory, budget, excess_bytes, shm_bytes)), GB10_SOURCE, flag
    )


def on_gb10(memory: Memory, shm_bytes: int = 0) -> Budget:
    """Return the budget of a server alone on a GB10 without any measurements; its /dev/shm is a limit."""
    start = StartFacts(shm_bytes=shm_bytes, shm_source="shm_size")
    return build(memory, GB10_BYTES, start, reserve_bytes=RESERVE_GIB * GIB, own=SYSTEM_ROW)


def _shm_bytes(container: Mapping[str, Any]) -> int:
    """Return the size that `shm_size` allows; 0 if it is not set, or invalid, which is refused elsewhere."""
    try:
        return parse_size(str(container.get("shm_size") or "0"))
    except SparkwrightError:
        return 0


def _list_ways(memory: Memory, budget: Budget, excess_bytes: int, shm_bytes: int) -> Iterator[Way]:
    """Yield what to set: a smaller /dev/shm if that suffices, else the largest share or context that fits together with one."""
    if excess_bytes <= shm_bytes - SHM_BYTES:
        yield Way(f"set shm_size to {SHM_SIZE}")
        return
    smaller_bytes = min(shm_bytes, SHM_BYTES)
    room_bytes = memory.engine_bytes(budget.total_bytes) - (excess_bytes - shm_bytes + smaller_bytes)
    fit = memory.largest_fit(budget.total_bytes, room_bytes)
    shm_change = f" and shm_size to {SHM_SIZE}" if shm_bytes > smaller_bytes else ""
    if fit is None:
        yield Way("serve a smaller model, or a shorter context")
        return
    flag, value = fit
    yield Way(f"set {flag} to {value:g}{shm_change}", {flag: value if memory.share else int(value)})
