"""Memory model of an engine: the memory that it needs on a host, given its flags and its model. Pure functions.

GPU memory is a share of MemTotal (vLLM, SGLang) or a number of bytes (llama.cpp, servers that a recipe describes). In addition,
the engine's processes, CUDA's context and the driver's tables need host memory. On a GB10 both are the same physical memory.
Sources: llamastash PR 81 (vLLM 0.28 uses 5.4 to 6.7 GiB of host memory besides its share); vllm #56824, #46307 and eugr PR
286 (memory of a first compile).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sparkwright.units import GIB

#: host memory assumed for an engine that has not been measured on this host
ASSUMED_HOST_BYTES = 7 * GIB
#: peak host memory of a first compile, which runs before the KV cache is allocated (eugr PR 286)
COMPILE_PEAK_BYTES = 28 * GIB
#: suffixes of weights that vLLM and SGLang load, by preference
PYTORCH_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
#: a proposed share or context is a multiple of these
SHARE_STEP, CONTEXT_STEP = 0.01, 1024


#: end of the names of parts that flags keep on the CPU
_CPU_SUFFIX = " on the CPU"


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of an engine's memory, shown as a row of a memory budget."""

    name: str
    size_bytes: int
    #: source of the size, as a clause
    source: str
    assumed: bool = False
    #: allocated while serving, not at the start
    later: bool = False
    #: host memory; a measured size replaces it
    host: bool = False
    #: a file in /dev/shm; only for lint, not in the JSON
    in_shm: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, of which hosts keep a copy: their records accept no other fields (`records/state_shapes.py`)."""
        return {name: value for name, value in asdict(self).items() if name != "in_shm"}


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that an engine needs on a host; unknown if both `share` and `bytes` are 0.

    Methods take the host's MemTotal as `total_bytes`.
    """

    #: share of MemTotal that the engine reserves as GPU memory, weights included; 0 if it does not reserve a share
    share: float = 0.0
    #: bytes besides the share
    bytes: int = 0
    #: size of the model's files in the lock; 0 if unknown
    weights_bytes: int = 0
    #: source of `weights_bytes`, as a clause
    weights_source: str = "spark.lock"
    #: the parts of `bytes`
    parts: tuple[MemoryPart, ...] = ()
    #: the flag that sets the share, the context or the bytes
    flag: str = ""
    #: value of that flag
    value: float = 0.0
    #: growth of `bytes` per token of `value`; 0 if they do not grow
    per_token_bytes: float = 0.0
    #: assumed host memory, until it is measured; 0 if `bytes` includes it
    host_bytes: int = 0
    #: the engine compiles when it starts without a compile cache
    compiles: bool = False
    #: share of MemTotal that must be available at the start, even if the engine does not allocate all of it
    start_share: float = 0.0

    def gpu_bytes(self, total_bytes: int) -> int:
        """Return the GPU memory that is allocated at the start."""
        return self.engine_bytes(total_bytes) - sum(part.size_bytes for part in self.parts if part.later or part.host)

    @property
    def shm_bytes(self) -> int:
        """The parts of `bytes` that are files in /dev/shm."""
        return sum(part.size_bytes for part in self.parts if part.in_shm)

    @property
    def known(self) -> bool:
        return bool(self.share or self.bytes)

    def engine_bytes(self, total_bytes: int) -> int:
        """Return the memory that the flags determine, excluding `host_bytes`."""
        return int(self.share * total_bytes) + self.bytes

    def largest_fit(self, total_bytes: int, room_bytes: int) -> tuple[str, float] | None:
        """Return `flag` and its largest value with which the engine needs at most room_bytes.

        None if there is no such value, or the flag is unknown.
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
        """Return this memory model with the weights of a second model, which are part of the share if the engine has one."""
        if not size_bytes or not self.known:
            return self
        weights_bytes = self.weights_bytes + size_bytes
        if self.share:
            return replace(self, weights_bytes=weights_bytes)
        parts = (*self.parts, MemoryPart(name, size_bytes, "spark.lock"))
        return replace(self, weights_bytes=weights_bytes, bytes=self.bytes + size_bytes, parts=parts)

    def split(self, hosts: int) -> Memory:
        """Return the memory model for one host of a cluster, which loads its part of the weights."""
        return replace(self, weights_bytes=self.weights_bytes // hosts) if hosts > 1 else self

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON for a plan, without default values."""
        defaults = Memory()
        changed = {name: value for name, value in asdict(self).items() if value != getattr(defaults, name)}
        return {**changed, **({"parts": [part.to_json() for part in self.parts]} if self.parts else {})}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Memory:
        """Rebuild a memory model from the output of `to_json`; unknown keys are ignored."""
        names = {field.name for field in fields(cls)} - {"parts"}
        values = {name: value for name, value in data.items() if name in names}
        return cls(**values, parts=tuple(MemoryPart(**part) for part in data.get("parts") or ()))


def read_cpu_part(content: str, flags: Mapping[str, Any], flag: str, unit_bytes: int = GIB) -> tuple[MemoryPart, ...]:
    """Return what a flag keeps on the CPU, whose size it sets, by default in GiB; empty if it is not set or its value is invalid."""
    try:
        size_bytes = int(float(flags.get(flag) or 0) * unit_bytes)
    except (TypeError, ValueError, OverflowError):
        return ()
    return (MemoryPart(f"{content}{_CPU_SUFFIX}", size_bytes, flag),) if size_bytes > 0 else ()


def offload_flags(memory: Memory) -> list[str]:
    """Return the flags with the sizes of what the engine keeps on the CPU, which shares its memory with a GB10's GPU."""
    return [part.source for part in memory.parts if part.name.endswith(_CPU_SUFFIX)]


def build_from_share(share: float, needs_bytes: int) -> Memory:
    """Return the memory model for a record of an older version, which has only these two values."""
    parts = (MemoryPart("the engine", needs_bytes, "the record of its last verified start"),) if needs_bytes else ()
    host_bytes = ASSUMED_HOST_BYTES if share else 0
    return Memory(share=share, bytes=needs_bytes, parts=parts, host_bytes=host_bytes, compiles=bool(share))


def sum_weights(lock_entry: Mapping[str, Any], suffixes: tuple[str, ...]) -> int:
    """Return the bytes of a model's weights; 0 until it is pinned.

    lock_entry: the model's entry in spark.lock. suffixes: suffixes of weight files, by preference; only
    the files with the first suffix that occurs are counted.
    """
    files = [
        (str(file.get("path")).lower(), int(file.get("size_bytes") or 0)) for file in lock_entry.get("files") or ()
    ]
    sums = (sum(size for path, size in files if path.endswith(suffix)) for suffix in suffixes)
    return next((size for size in sums if size), 0)
