"""The state of an engine according to its log: values, each with a log line as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sparkwright.units import GIB, MIB

#: names of the readings that are settings
SETTINGS: tuple[str, ...] = (
    *("version", "architecture", "chunked_prefill", "prefix_caching", "block_size", "mamba_cache_mode"),
    *("kv_cache_dtype", "kv_cache_tokens", "max_concurrency", "max_model_len", "attention_backend", "quantization"),
    *("cuda_graphs", "cudagraph_mode"),
)
#: names of the readings of every engine, the most interesting first; names that end in _s are seconds
FIELDS: tuple[str, ...] = (
    *SETTINGS,
    *("weights_s", "compile_s", "autotune_s", "graphs_s", "init_s", "ready_s"),
    *("ready", "stopped", "failure"),
)
MAX_EVIDENCE_CHARS = 300
#: maximum number of kernels of one kind; a model with mixed quantization uses a few
MAX_KERNELS = 8
#: units of size readings, in bytes, by reading; in some logs, the weights include the memory of CUDA and its libraries
WEIGHT_READINGS = {"weights_gib": GIB, "gpu_weights_mib": MIB}
KV_CACHE_READINGS = {"kv_cache_gib": GIB, "kv_cache_keys_gib": GIB, "kv_cache_values_gib": GIB, "kv_cache_mib": MIB}
KV_CACHE_READINGS |= {"recurrent_mib": MIB}
OTHER_MEMORY_READINGS = {"activation_gib": GIB, "non_torch_gib": GIB, "graphs_gib": GIB, "gpu_compute_mib": MIB}
#: names of all size readings, in the order in which a start logs them
MEMORY_READINGS = (*WEIGHT_READINGS, *OTHER_MEMORY_READINGS, *KV_CACHE_READINGS)
#: reading with a stage's duration in seconds, by the displayed name of the stage
STAGE_READINGS: dict[str, str] = {
    "weights": "weights_s",
    "compile": "compile_s",
    "autotune": "autotune_s",
    "graphs": "graphs_s",
}
#: below this, seconds are shown in tenths
TENTHS_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A value read from a log."""

    #: None if unknown
    value: Any = None
    #: the log line
    evidence: str = ""


UNKNOWN_READING = Reading()


@dataclass
class EngineState:
    """The state of an engine since its last start."""

    #: by name; quantization is "none" for a model without quantization
    readings: dict[str, Reading] = field(default_factory=dict)
    #: kernels and backends in use, each with its line, by kind and name
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)
    #: a stage of the LogFormat; empty before the first
    stage: str = ""
    #: seconds from a stage's first line to the next stage's, if the log has times
    stage_s: dict[str, float] = field(default_factory=dict)
    #: number of loaded shards, total number of shards
    shards: tuple[int, int] = (0, 0)
    warnings: list[str] = field(default_factory=list)
    #: names of the engine's readings in addition to FIELDS
    extra_readings: tuple[str, ...] = ()

    def record(self, name: str, value: Any, line: str) -> None:
        """Keep a reading with its line, unless the value is None."""
        if value is not None:
            self.readings[name] = Reading(value, shorten_evidence(line))

    def add_kernel(self, kind: str, name: str, line: str) -> None:
        """Add a kernel or backend; a model may use several of one kind."""
        names = self.kernels.setdefault(kind, {})
        if name and len(names) < MAX_KERNELS:
            names.setdefault(name, shorten_evidence(line))

    def value(self, name: str) -> Any:
        """Return a reading's value; None if unknown."""
        return self.reading(name).value

    def reading(self, name: str) -> Reading:
        """Return a value with its evidence; UNKNOWN_READING if the log does not contain it."""
        return self.readings.get(name, UNKNOWN_READING)

    @property
    def ready(self) -> bool:
        """True if the engine became ready; it may have stopped or failed since."""
        return self.value("ready") is True

    @property
    def failure(self) -> Reading:
        return self.reading("failure")

    @property
    def known(self) -> bool:
        """True if the log contains any part of a start."""
        return bool(self.readings or self.stage)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: values by name, null if unknown, and the evidence under its own key."""
        names = (*FIELDS, *self.extra_readings)
        return {
            **{name: self.value(name) for name in names},
            "stage": self.stage or None,
            "stage_s": self.stage_s,
            "warnings": self.warnings,
            "kernels": {kind: sorted(kernel_names) for kind, kernel_names in self.kernels.items()},
            "evidence": {name: self.readings[name].evidence for name in names if name in self.readings},
        }


def shorten_evidence(line: str) -> str:
    """Return a line stripped and truncated."""
    line = line.strip()
    return line if len(line) <= MAX_EVIDENCE_CHARS else f"{line[:MAX_EVIDENCE_CHARS]} ..."


def gpu_memory_bytes(state: EngineState) -> int | None:
    """Return the engine's GPU memory in bytes; None if the log lacks the weights or the KV cache."""
    sizes = [_sum_bytes(state, readings) for readings in (WEIGHT_READINGS, KV_CACHE_READINGS, OTHER_MEMORY_READINGS)]
    return sum(sizes) if sizes[0] and sizes[1] else None


def _sum_bytes(state: EngineState, readings: dict[str, int]) -> int:
    values = ((state.value(name), unit) for name, unit in readings.items())
    return sum(int(value * unit) for value, unit in values if isinstance(value, int | float))


def stage_durations(state: EngineState) -> dict[str, float]:
    """Return the duration of each stage in the log, in seconds, by name."""
    durations = {stage: state.value(reading) for stage, reading in STAGE_READINGS.items()}
    return {stage: float(seconds) for stage, seconds in durations.items() if seconds is not None}


def format_stages(stages: Mapping[str, Any] | None) -> str:
    """Return durations as text, such as "weights 210 s, compile 95 s, graphs 40 s"; unknown stages and invalid values are omitted."""
    durations = {stage: (stages or {}).get(stage) for stage in STAGE_READINGS}
    return ", ".join(f"{stage} {format_seconds(value)}" for stage, value in durations.items() if _is_seconds(value))


def format_seconds(value: float) -> str:
    """Return seconds as text: in whole seconds, or in tenths below ten."""
    return f"{value:.0f} s" if value >= TENTHS_LIMIT_S else f"{value:.1f} s"


def _is_seconds(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
