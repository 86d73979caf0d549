"""Memory model of an engine: its need of a host's memory, by its flags and its model. Pure.

An engine takes a share of MemTotal (vLLM, SGLang), or a number of bytes (llama.cpp, a described server), on the GPU's side; and
on top of that memory on the host's side: its processes, CUDA's context, the driver's tables. On a GB10 both are the same memory.
Sources: llamastash PR 81 (5.4 to 6.7 GiB on the host's side of vLLM 0.28, on top of its share); vllm #56824, #46307 and eugr PR
286 (memory of a first compile).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sparkwright.units import GIB

#: assumed host's side of an engine that was not measured on this host; 5.4 to 6.7 GiB were measured elsewhere
HOST_SIDE_BYTES = 7 * GIB
#: greatest host memory seen in a first compile, before the KV cache exists (eugr PR 286)
COMPILE_BYTES = 28 * GIB
#: steps of a proposed share and of a proposed context
SHARE_STEP, CONTEXT_STEP = 0.01, 1024


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of an engine's memory, as a row of a budget."""

    name: str
    size_bytes: int
    #: source of the figure, as a clause
    source: str
    assumed: bool = False
    #: taken while it serves, not at its start
    later: bool = False
    #: on the host's side: replaced by a measured figure
    host: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """An engine's need of a host's memory. Neither a share nor bytes: not known."""

    #: share of MemTotal on the GPU's side, weights included; 0 for an engine without a share
    share: float = 0.0
    #: bytes beyond the share
    bytes: int = 0
    #: bytes of the model's files by the lock; 0 if not known
    weights_bytes: int = 0
    #: source of `weights_bytes`, as a clause
    weights_source: str = "spark.lock"
    #: the parts of `bytes`
    parts: tuple[MemoryPart, ...] = ()
    #: the flag that sets the share, the context or the bytes, and its value
    flag: str = ""
    value: float = 0.0
    #: growth of `bytes` per token of `value`; 0 if they do not grow
    per_token_bytes: float = 0.0
    #: assumed bytes on the host's side, if nothing was measured; 0 if `bytes` includes them
    host_bytes: int = 0
    #: a start without a compile cache compiles
    compiles: bool = False
    #: share of MemTotal that must be available at a start, though it is not all taken
    start_share: float = 0.0

    def gpu_bytes(self, total_bytes: int) -> int:
        """Return the bytes that a start takes on the GPU's side, without what is taken later or on the host's side."""
        return self.engine_bytes(total_bytes) - sum(part.size_bytes for part in self.parts if part.later or part.host)

    @property
    def known(self) -> bool:
        """True if the need is known."""
        return bool(self.share or self.bytes)

    def engine_bytes(self, total_bytes: int) -> int:
        """Return the bytes that the engine takes by its flags; `host_bytes` come on top. total_bytes: the host's MemTotal."""
        return int(self.share * total_bytes) + self.bytes

    def largest_fit(self, total_bytes: int, room_bytes: int) -> tuple[str, float] | None:
        """Return the flag and its largest value with which the engine takes at most room_bytes.

        None if no value does, or no flag is known. total_bytes: the host's MemTotal.
        """
        if self.share:
            value = math.floor((room_bytes - self.bytes) / total_bytes / SHARE_STEP + 1e-9) * SHARE_STEP
            fits = value > 0 and value * total_bytes > self.weights_bytes
            return (self.flag, round(value, 2)) if self.flag and fits else None
        if not (self.flag and self.per_token_bytes and self.value):
            return None
        tokens = self.value - max(0.0, self.bytes - room_bytes) / self.per_token_bytes
        tokens = math.floor(tokens / CONTEXT_STEP) * CONTEXT_STEP if tokens >= CONTEXT_STEP else 0
        return (self.flag, tokens) if tokens else None

    def with_model(self, name: str, size_bytes: int) -> Memory:
        """Return this memory model with the weights of a second model: inside the share, if the engine has one."""
        if not size_bytes or not self.known:
            return self
        grown = replace(self, weights_bytes=self.weights_bytes + size_bytes)
        if self.share:
            return grown
        return replace(
            grown, bytes=self.bytes + size_bytes, parts=(*self.parts, MemoryPart(name, size_bytes, "spark.lock"))
        )

    def split(self, hosts: int) -> Memory:
        """Return the memory model of one host of several that serve a model together: each holds its part of the weights."""
        return replace(self, weights_bytes=self.weights_bytes // hosts) if hosts > 1 else self

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for a plan, without default values."""
        defaults = Memory()
        changed = {name: value for name, value in asdict(self).items() if value != getattr(defaults, name)}
        return {**changed, **({"parts": [asdict(part) for part in self.parts]} if self.parts else {})}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Memory:
        """Return the memory model that `to_json` made; other keys are ignored."""
        names = {field.name for field in fields(cls)} - {"parts"}
        values = {name: value for name, value in data.items() if name in names}
        return cls(**values, parts=tuple(MemoryPart(**part) for part in data.get("parts") or ()))


def build_from_share(share: float, needs_bytes: int) -> Memory:
    """Return a memory model from a share and bytes alone, as a record of an older version holds it."""
    parts = (MemoryPart("the engine", needs_bytes, "the record of its last verified start"),) if needs_bytes else ()
    host = HOST_SIDE_BYTES if share else 0
    return Memory(share=share, bytes=needs_bytes, parts=parts, host_bytes=host, compiles=bool(share))


def sum_weights(locked: Mapping[str, Any], suffixes: tuple[str, ...]) -> int:
    """Return the bytes of a locked model's files with the first of these suffixes that any file has. 0 while the model is not
    pinned."""
    rows = [(str(file.get("path")).lower(), int(file.get("size_bytes") or 0)) for file in locked.get("files") or ()]
    sizes = (sum(size for path, size in rows if path.endswith(suffix)) for suffix in suffixes)
    return next((size for size in sizes if size), 0)
