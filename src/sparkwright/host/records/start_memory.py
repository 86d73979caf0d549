"""Memory figures of verified starts: ~/.local/state/sparkwright/start_memory.json, one file per host.

The budget of the next start uses them: of the same image, model and arguments if there was such a start, else of the same image.
Bytes are from /proc/meminfo's MemAvailable, which alone includes CUDA's allocations in shared memory; a process's RSS does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sparkwright.engines.budget import MeasuredStart
from sparkwright.host.records.state_shapes import START_MEMORY
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import select_valid

FILE = "start_memory"
VERSION = 1
MAX_STARTS = 64
#: how closely a recorded start matches another one
Match = Literal["start", "image"]


@dataclass(frozen=True, slots=True)
class StartMemory:
    """The memory figures of one verified start."""

    name: str
    #: its digest
    image: str
    model: str
    #: see protocol/container.py
    arguments: str
    #: it found no compile cache
    cold: bool
    #: seconds since the epoch, when it was verified
    at: float
    #: available before `docker start`
    before_bytes: int
    #: the lowest value from `docker start` until it was verified
    lowest_bytes: int
    #: available when it was verified
    after_bytes: int
    #: on the GPU's side, by `gpu_source`; None if unknown
    gpu_bytes: int | None = None
    #: log: the engine's own figures; share: utilization x MemTotal
    gpu_source: str = ""
    #: on the host's side: what was taken beyond gpu_bytes, at least 0
    host_bytes: int | None = None
    #: tokens in the KV cache, and concurrent requests of full length, from the log
    kv_tokens: int | None = None
    full_requests: float | None = None
    run: str = ""

    @property
    def taken_bytes(self) -> int:
        """Bytes that the server took in total, at least 0."""
        return max(0, self.before_bytes - self.after_bytes)

    @property
    def peak_bytes(self) -> int:
        """Bytes that the start took temporarily beyond that."""
        return max(0, self.after_bytes - self.lowest_bytes)

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """The identity of a start; the newest of each is kept."""
        return self.image, self.model, self.arguments, self.cold

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, for the file, for `history` and for programs."""
        return asdict(self)


def read_starts(state: StateFolder) -> list[StartMemory]:
    """Return all records, newest first; empty for a file of another version."""
    record = state.read(FILE) or {}
    if record.get("version") != VERSION:
        return []
    return parse_starts(record.get("starts"))


def parse_starts(rows: Any) -> list[StartMemory]:
    """Return the starts in rows of the file or of `history` events; malformed ones are left out."""
    field_names = {field.name for field in fields(StartMemory)}
    return [
        StartMemory(**{name: value for name, value in row.items() if name in field_names})
        for row in select_valid(START_MEMORY, rows)
    ]


def learned_figures(matched_start: tuple[StartMemory, Match] | None) -> MeasuredStart | None:
    """Return the figures of a start that a budget uses.

    Args:
        matched_start: as `find_last` returns it.
    """
    if matched_start is None:
        return None
    start, match = matched_start
    return MeasuredStart(
        host_bytes=start.host_bytes,
        gpu_bytes=start.gpu_bytes,
        peak_bytes=start.peak_bytes,
        at=start.at,
        same=match == "start",
        kv_tokens=start.kv_tokens,
        full_requests=start.full_requests,
    )


def add(state: StateFolder, start: StartMemory) -> None:
    """Record a verified start, replacing the last one with the same key. The oldest are removed."""
    others = [start_memory for start_memory in read_starts(state) if start_memory.key != start.key]
    rows = [other.to_json() for other in (start, *others)][:MAX_STARTS]
    state.write(FILE, {"version": VERSION, "starts": rows})


def find_last(
    starts: Iterable[StartMemory], identity: Mapping[str, Any], *, cold: bool | None = None
) -> tuple[StartMemory, Match] | None:
    """Return the newest start of the same image, model and arguments, else of the same image; None if there is none.

    Args:
        starts: As `read_starts` returns them.
        identity: image (its digest), model (its commit) and arguments of the new start.
        cold: Only cold starts, or only warm ones; None for both.
    """
    if not identity.get("image"):
        return None
    candidates = [start for start in starts if start.image == identity["image"] and cold in (None, start.cold)]
    exact = [
        start_memory
        for start_memory in candidates
        if (start_memory.model, start_memory.arguments) == (identity.get("model"), identity.get("arguments"))
    ]
    if exact:
        return exact[0], "start"
    return (candidates[0], "image") if candidates else None
