"""Memory figures of verified starts: ~/.local/state/sparkwright/start_memory.json, one file per host.

The next start's memory budget uses the figures of a start with the same image, model and arguments, or else with the same image.
Available memory is MemAvailable of /proc/meminfo, which reflects CUDA's allocations in unified memory; a process's RSS does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sparkwright.engines.budget import MeasuredStart
from sparkwright.host.records.state_shapes import START_MEMORY_SHAPE
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import select_valid

RECORD_NAME = "start_memory"
FORMAT_VERSION = 1
MAX_STARTS = 64
#: "start": same image, model and arguments; "image": same image only
Match = Literal["start", "image"]


@dataclass(frozen=True, slots=True)
class StartMemory:
    """The memory figures of one verified start."""

    #: name of the container
    name: str
    #: digest of the image
    image: str
    #: commit of the model
    model: str
    #: see protocol/container.py
    arguments: str
    #: True if there was no compile cache
    cold: bool
    #: time of the verification, seconds since the epoch
    at: float
    #: available memory before `docker start`
    before_bytes: int
    #: lowest available memory between `docker start` and the verification
    lowest_bytes: int
    #: available memory at the verification
    after_bytes: int
    #: memory for the GPU, from `gpu_source`; None if unknown
    gpu_bytes: int | None = None
    #: "log": figures in the engine's log; "flags": the size that its flags imply; empty if unknown
    gpu_source: str = ""
    #: memory beyond gpu_bytes, at least 0; None if unknown
    host_bytes: int | None = None
    #: tokens in the KV cache, and concurrent requests of full length, from the log; None if unknown
    kv_tokens: int | None = None
    full_requests: float | None = None
    run: str = ""

    @property
    def taken_bytes(self) -> int:
        """Memory that the running server uses, at least 0."""
        return max(0, self.before_bytes - self.after_bytes)

    @property
    def peak_bytes(self) -> int:
        """Memory that the start used temporarily, in addition to `taken_bytes`."""
        return max(0, self.after_bytes - self.lowest_bytes)

    @property
    def key(self) -> tuple[str, str, str, bool]:
        """The identity of a start; only the newest record of each is kept."""
        return self.image, self.model, self.arguments, self.cold

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return asdict(self)


def read_starts(state: StateFolder) -> list[StartMemory]:
    """Return all records, newest first; empty if the file has another version of the format."""
    record = state.read(RECORD_NAME) or {}
    return parse_starts(record.get("starts")) if record.get("version") == FORMAT_VERSION else []


def parse_starts(rows: Any) -> list[StartMemory]:
    """Return the starts in JSON from the file or from history events, without malformed ones."""
    field_names = {field.name for field in fields(StartMemory)}
    return [
        StartMemory(**{name: value for name, value in row.items() if name in field_names})
        for row in select_valid(START_MEMORY_SHAPE, rows)
    ]


def measured_figures(matched_start: tuple[StartMemory, Match] | None) -> MeasuredStart | None:
    """Return the figures for a memory budget, given the result of `find_last`."""
    if matched_start is None:
        return None
    start, match = matched_start
    return MeasuredStart(
        host_bytes=start.host_bytes,
        gpu_bytes=start.gpu_bytes,
        peak_bytes=start.peak_bytes,
        started_at=start.at,
        is_same_start=match == "start",
        kv_tokens=start.kv_tokens,
        full_requests=start.full_requests,
    )


def add(state: StateFolder, start: StartMemory) -> None:
    """Record a verified start, replacing the one with the same key. Keeps the newest MAX_STARTS."""
    others = [recorded for recorded in read_starts(state) if recorded.key != start.key]
    starts = [recorded.to_json() for recorded in (start, *others)][:MAX_STARTS]
    state.write(RECORD_NAME, {"version": FORMAT_VERSION, "starts": starts})


def find_last(
    starts: Iterable[StartMemory], identity: Mapping[str, Any], *, is_cold: bool | None = None
) -> tuple[StartMemory, Match] | None:
    """Return the newest start with the same image, model and arguments, or else with the same image; None if there is none.

    Args:
        starts: recorded starts, newest first.
        identity: image (its digest), model (its commit) and arguments of the new start.
        is_cold: True for cold starts only, False for warm starts only, None for both.
    """
    if not identity.get("image"):
        return None
    candidates = [start for start in starts if start.image == identity["image"] and is_cold in (None, start.cold)]
    for start in candidates:
        if (start.model, start.arguments) == (identity.get("model"), identity.get("arguments")):
            return start, "start"
    return (candidates[0], "image") if candidates else None
