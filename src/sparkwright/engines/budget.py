"""Memory budget of a start: what uses the host's memory, each use with its size and the source of that figure.

Pure functions, used on the laptop and on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparkwright.defaults import RESERVE_GIB
from sparkwright.engines.advice import Platform
from sparkwright.engines.findings import Finding, Fix, Rules
from sparkwright.engines.memory import ASSUMED_HOST_BYTES, COMPILE_PEAK_BYTES, Memory
from sparkwright.errors import SparkwrightError
from sparkwright.trust.bounds import MAX_NUMBER
from sparkwright.trust.container_option_rules import parse_size
from sparkwright.trust.shapes import line, number_between, validate
from sparkwright.units import GIB, MINUTE_FORMAT, format_gib, format_time

#: owner of a row: the server to start, other servers, the host itself
RowOwner = Literal["server", "other", "host"]
#: row for the memory of the engine's processes, CUDA's context and the driver, besides the GPU memory
HOST_SIDE_ROW_NAME = "host's side"
#: that memory is assumed to be at most MemTotal / 17, because it has never been measured on a machine smaller than a GB10
HOST_SIDE_DIVISOR = 17
#: weights smaller than this get no separate row
MIN_SHOWN_BYTES = GIB // 20
ASSUMED_NOTE = "assumed, never measured on this host"
#: MemTotal of a GB10 made in 2026; those made in 2025 have 119.7 GiB
GB10_BYTES = int(121.7 * GIB)
#: suggested size of /dev/shm, which a server on one GPU hardly uses
SHM_BYTES = GIB
GB10_SOURCE = "reports of GB10 users"

_COUNT_SHAPE = number_between(0, MAX_NUMBER)
ROW_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("name", "source"), line),
    "size_bytes": _COUNT_SHAPE,
    "about": frozenset(("server", "other", "host")),
    **dict.fromkeys(("assumed", "at_most"), bool),
}
#: shape of a budget's JSON without the sums
BUDGET_SHAPE: dict[str, Any] = {
    "total_bytes": _COUNT_SHAPE,
    "rows": [ROW_SHAPE],
    **dict.fromkeys(("available_bytes", "kv_tokens", "full_requests"), (None, _COUNT_SHAPE)),
}
#: shape of a budget's JSON with the sums
BUDGET_JSON_SHAPE: dict[str, Any] = {
    **BUDGET_SHAPE,
    "need_bytes": _COUNT_SHAPE,
    "left_bytes": number_between(-MAX_NUMBER, MAX_NUMBER),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One use of memory."""

    name: str
    size_bytes: int
    #: source of the size, as a clause
    source: str
    about: RowOwner = "server"
    #: a conservative estimate, neither measured nor documented
    assumed: bool = False
    #: an upper limit: shown, but not included in the sums
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """Figures from an earlier verified start on the same host; see host/records/start_memory.py."""

    host_bytes: int | None = None
    #: GPU memory in bytes: the larger of the figures in the engine's log and its memory model
    gpu_bytes: int | None = None
    peak_bytes: int = 0
    #: time of that start, seconds since the epoch
    started_at: float = 0.0
    #: image, model and arguments are the same as now; if False, only the image is
    is_same_start: bool = True
    kv_tokens: int | None = None
    full_requests: float | None = None

    @property
    def source(self) -> str:
        """The source of these figures, as a clause."""
        qualifier = "" if self.is_same_start else " with this image, but another model or other arguments"
        return f"measured {format_time(self.started_at, MINUTE_FORMAT)}{qualifier}"


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Facts about a start that its engine's memory model does not contain."""

    #: the last similar verified start
    last_start: MeasuredStart | None = None
    #: the last similar cold start whose compile cache is gone
    last_cold_start: MeasuredStart | None = None
    #: an earlier start left a compile cache
    has_warm_cache: bool = False
    #: size limit of /dev/shm; 0 if unlimited
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
    #: tokens that fitted in the KV cache at the last start
    kv_tokens: int | None = None
    #: full-length requests that fitted in it
    full_requests: float | None = None

    @property
    def need_bytes(self) -> int:
        """Bytes needed: the sum of all rows except limits."""
        return sum(row.size_bytes for row in self.rows if not row.at_most)

    @property
    def left_bytes(self) -> int:
        """Bytes left beyond the reserve; negative if the server does not fit."""
        return self.total_bytes - self.need_bytes

    @property
    def limits_bytes(self) -> int:
        """Bytes that the server may use in addition to `need_bytes` while it runs."""
        return sum(row.size_bytes for row in self.rows if row.at_most and row.about == "server")

    @property
    def fits(self) -> bool:
        """True if the host has enough memory."""
        return self.left_bytes >= 0

    def owner_bytes(self, owner: RowOwner) -> int:
        """Return the bytes that one owner needs, excluding limits."""
        return sum(row.size_bytes for row in self.rows if row.about == owner and not row.at_most)

    def lines(self) -> list[str]:
        """Return a table as lines of text, with size in GiB, use and source."""
        left_text = f"{format_gib(self.left_bytes)} left" if self.fits else f"{format_gib(-self.left_bytes)} too much"
        available_text = (
            f", {format_gib(self.available_bytes)} available now" if self.available_bytes is not None else ""
        )
        rows = [("GiB", "memory", "source"), *map(_format_cells, self.rows)]
        rows.append((format_gib(self.need_bytes), "total", left_text))
        rows.append((format_gib(self.total_bytes), "MemTotal", f"this host{available_text}"))
        width = max(len(name) for _, name, _ in rows)
        lines = [f"{size:>7}  {name:<{width}}  {source}".rstrip() for size, name, source in rows]
        if self.kv_tokens:
            requests_text = f", {self.full_requests:g} full-length requests at a time" if self.full_requests else ""
            lines.append(f"At the last start, the KV cache held {self.kv_tokens:,} tokens{requests_text}.")
        return lines

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
        """Rebuild a budget from the output of `to_json`. Raises ValueError if its shape is wrong."""
        checked = validate(data, BUDGET_SHAPE, "budget")
        rows = tuple(Row(**{name: row[name] for name in ROW_SHAPE}) for row in checked["rows"])
        return cls(**{**{name: checked[name] for name in BUDGET_SHAPE}, "rows": rows})


def _format_cells(row: Row) -> tuple[str, str, str]:
    size, source = format_gib(row.size_bytes), row.source
    if row.assumed:
        source = f"{ASSUMED_NOTE if row.name == HOST_SIDE_ROW_NAME else 'assumed'}: {source}"
    return (f"({size})", row.name, f"at most: {source}") if row.at_most else (size, row.name, source)


def build(
    memory: Memory,
    total_bytes: int,
    start_facts: StartFacts,
    *,
    reserve_bytes: int,
    other_rows: Sequence[Row] = (),
    system_row: Row | None = None,
    available_bytes: int | None = None,
) -> Budget:
    """Return the budget of one start.

    Args:
        total_bytes: MemTotal of the host.
        reserve_bytes: Memory that must stay free.
        other_rows: Rows of other servers on the host.
        system_row: Row of the host's own processes; None if unknown.
        available_bytes: MemAvailable now.
    """
    rows = list(engine_rows(memory, total_bytes, start_facts))
    counted_bytes = sum(row.size_bytes for row in rows if not row.at_most) + reserve_bytes
    rows += [*_start_check_rows(memory, total_bytes, counted_bytes), *other_rows, *([system_row] if system_row else ())]
    rows.append(Row("reserve", reserve_bytes, "reserve_gib", "host"))
    last_start = (
        start_facts.last_start if start_facts.last_start and start_facts.last_start.is_same_start else MeasuredStart()
    )
    return Budget(total_bytes, tuple(rows), available_bytes, last_start.kv_tokens, last_start.full_requests)


def engine_rows(memory: Memory, total_bytes: int, start_facts: StartFacts) -> Iterator[Row]:
    """Yield the rows of the server to start: its GPU memory, host memory, compile peak and /dev/shm."""
    yield from _share_rows(memory, total_bytes)
    for part in memory.parts:
        if not part.host:
            timing_note = ", allocated while it serves" if part.later else ""
            yield Row(part.name, part.size_bytes, f"{part.source}{timing_note}", assumed=part.assumed)
    last_start = start_facts.last_start
    if (
        last_start is not None
        and last_start.is_same_start
        and (last_start.gpu_bytes or 0) > memory.gpu_bytes(total_bytes)
    ):
        extra_bytes = (last_start.gpu_bytes or 0) - memory.gpu_bytes(total_bytes)
        yield Row("other GPU memory", extra_bytes, f"such as CUDA graphs; from its log, {last_start.source}")
    yield from _host_side_rows(memory, total_bytes, start_facts)
    if memory.compiles:
        yield _compile_row(memory, total_bytes, start_facts)
    if start_facts.shm_bytes:
        yield Row("/dev/shm", start_facts.shm_bytes, start_facts.shm_source, at_most=True)


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


def _host_side_rows(memory: Memory, total_bytes: int, start_facts: StartFacts) -> Iterator[Row]:
    last_start = start_facts.last_start
    if last_start is not None and last_start.host_bytes is not None:
        gpu_bytes = memory.gpu_bytes(total_bytes)
        # an earlier version of the memory model counted this part of the same start as the host's side
        moved_bytes = gpu_bytes - (last_start.gpu_bytes or gpu_bytes) if last_start.is_same_start else 0
        size_bytes = max(0, last_start.host_bytes - max(0, moved_bytes))
        yield Row(HOST_SIDE_ROW_NAME, size_bytes, last_start.source)
    elif memory.host_bytes:
        size_bytes = min(memory.host_bytes, total_bytes // HOST_SIDE_DIVISOR)
        yield Row(HOST_SIDE_ROW_NAME, size_bytes, "5.4 to 6.7 GiB on other hosts", assumed=True)
    else:
        for part in memory.parts:
            if part.host:
                yield Row(HOST_SIDE_ROW_NAME, part.size_bytes, part.source, assumed=part.assumed)


def _compile_row(memory: Memory, total_bytes: int, start_facts: StartFacts) -> Row:
    """Return the row for the temporary peak of a cold start, which compiles before it allocates its KV cache."""
    name = "compile peak"
    if start_facts.has_warm_cache:
        return Row(name, 0, "the compile cache is warm")
    last_cold_start = start_facts.last_cold_start
    if last_cold_start is not None and last_cold_start.is_same_start:
        return Row(name, last_cold_start.peak_bytes, f"a cold start, {last_cold_start.source}")
    weights_bytes = memory.weights_bytes
    peak_bytes = max(0, weights_bytes + min(weights_bytes, COMPILE_PEAK_BYTES) - memory.gpu_bytes(total_bytes))
    return Row(name, peak_bytes, "a cold start compiles before it allocates its KV cache", assumed=True)


def _start_check_rows(memory: Memory, total_bytes: int, counted_bytes: int) -> list[Row]:
    """Return a row if the engine's start-up check requires more available memory than the counted bytes."""
    missing_bytes = int(memory.start_share * total_bytes) - counted_bytes
    source = (
        f"the engine requires {memory.start_share:g} of {format_gib(total_bytes)} GiB available, but does not use all"
    )
    return [Row("start-up check", missing_bytes, source)] if missing_bytes > 0 else []


def format_largest_fit(memory: Memory, budget: Budget) -> str:
    """Return the largest setting with which the server fits, as "FLAG VALUE"; empty if none does."""
    fit = memory.largest_fit(budget.total_bytes, memory.engine_bytes(budget.total_bytes) + budget.left_bytes)
    return f"{fit[0]} {fit[1]:.12g}" if fit else ""


#: DGX OS, its desktop and the driver, before anything is served
SYSTEM_ROW = Row("the system", 6 * GIB, "DGX OS, its desktop and the driver", "host", assumed=True)


@dataclass(frozen=True)
class BudgetCase:
    """Input of the rule memory-budget."""

    memory: Memory
    #: options of `docker run` by recipe key
    container: Mapping[str, Any] = field(default_factory=dict)
    platform: Platform = "gb10"


RULES: Rules[BudgetCase, BudgetCase] = Rules(describe_example=lambda case: {"container": case.container})
rule = RULES.rule


@rule(
    "memory-budget",
    sources=(
        "vllm #46307, #56824: starts at 0.70 used 112 and 119 of 121.7 GiB, and the host hung",
        "llamastash PR 81: 5.4 to 6.7 GiB on the host's side of the engine, on top of its share",
        "sgl-project/sglang #34872: 0.95 on a Spark; 0.75 swapped while graphs were captured, 0.70 worked",
        "hasso5703/dgx-spark-qwen38 #2: 0.95 froze hosts while graphs were captured",
        "tonyd2wild #31: /dev/shm is the same memory; 10 GB was enough for a worker",
    ),
    example=BudgetCase(
        Memory(share=0.9, flag="gpu-memory-utilization", value=0.9, host_bytes=ASSUMED_HOST_BYTES), {"shm_size": "64gb"}
    ),
)
def memory_budget(case: BudgetCase) -> Iterator[Finding]:
    """A server must leave the host its memory reserve.
    On a GB10, CPU and GPU share 119.7 to 121.7 GiB. An engine takes its share of the total, and its processes, the CUDA context and
    the driver take 5 to 7 GiB more on the host's side. Files in /dev/shm use the same memory, up to `shm_size`. If too little is left,
    the system runs out of memory, and even sshd may stop responding. Docker's memory limits do not cover CUDA allocations.
    """
    if case.platform != "gb10" or not case.memory.known:
        return
    shm_bytes = max(0, _shm_bytes(case.container) - case.memory.shm_bytes)
    budget = build_gb10_budget(case.memory, shm_bytes)
    excess_bytes = budget.need_bytes + shm_bytes - budget.total_bytes
    if excess_bytes <= 0:
        return
    parts = f"{format_gib(budget.owner_bytes('server'))} GiB for the engine, {format_gib(SYSTEM_ROW.size_bytes)} for the system, {RESERVE_GIB} reserve"
    parts += f", {format_gib(shm_bytes)} in /dev/shm" if shm_bytes else ""
    subject = f"{case.memory.flag} {case.memory.value:.12g}" if case.memory.flag else "the engine"
    message = f"{subject} leaves too little of the shared memory for the host: {parts}; {format_gib(excess_bytes)} GiB more than a GB10 has."
    flag = "container.shm_size" if excess_bytes <= shm_bytes - SHM_BYTES else case.memory.flag
    yield Finding(
        "warning", message, tuple(_list_fixes(case.memory, budget, excess_bytes, shm_bytes)), GB10_SOURCE, flag
    )


def build_gb10_budget(memory: Memory, shm_bytes: int = 0) -> Budget:
    """Return the budget of a GB10's only server, without measurements. shm_bytes: added as a limit."""
    start_facts = StartFacts(shm_bytes=shm_bytes, shm_source="shm_size")
    return build(memory, GB10_BYTES, start_facts, reserve_bytes=RESERVE_GIB * GIB, system_row=SYSTEM_ROW)


def _shm_bytes(container: Mapping[str, Any]) -> int:
    """Return `shm_size` in bytes; 0 if it is not set or invalid (which is refused elsewhere)."""
    try:
        return parse_size(str(container.get("shm_size") or "0"))
    except SparkwrightError:
        return 0


def _list_fixes(memory: Memory, budget: Budget, excess_bytes: int, shm_bytes: int) -> Iterator[Fix]:
    """Yield the fix: a smaller /dev/shm if that suffices, otherwise the largest share or context that fits along with it.

    Args:
        shm_bytes: limit of the files in /dev/shm that are not part of the engine's memory.
    """
    shm_size = f"{math.ceil((SHM_BYTES + memory.shm_bytes) / GIB)}gb"
    if excess_bytes <= shm_bytes - SHM_BYTES:
        yield Fix(f"set shm_size to {shm_size}")
        return
    smaller_bytes = min(shm_bytes, SHM_BYTES)
    room_bytes = memory.engine_bytes(budget.total_bytes) - (excess_bytes - shm_bytes + smaller_bytes)
    fit = memory.largest_fit(budget.total_bytes, room_bytes)
    shm_change = f" and shm_size to {shm_size}" if shm_bytes > smaller_bytes else ""
    if fit is None:
        yield Fix("serve a smaller model, or a shorter context")
        return
    flag, value = fit
    yield Fix(f"set {flag} to {value:.12g}{shm_change}", {flag: value if memory.share else int(value)})
