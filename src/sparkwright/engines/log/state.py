"""An engine's reports about itself, as values. Every field is a value with its line as evidence, or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sparkwright.units import GIB, MIB

#: settings that the engine runs with
SETTINGS: tuple[str, ...] = (
    *("version", "architecture", "chunked_prefill", "prefix_caching", "block_size", "mamba_cache_mode"),
    *("kv_cache_dtype", "kv_cache_tokens", "max_concurrency", "max_model_len", "attention_backend", "quantization"),
    *("cuda_graphs", "cudagraph_mode"),
)
#: every reading by name, in order of interest
FIELDS: tuple[str, ...] = (
    *SETTINGS,
    *("weights_s", "compile_s", "autotune_s", "graphs_s", "init_s", "ready_s"),
    *("ready", "stopped", "failure"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A value read from a log."""

    #: None if unknown
    value: Any = None
    #: the log line
    evidence: str = ""


UNKNOWN = Reading()
MAX_EVIDENCE_CHARS = 300
#: of one kind; a model with mixed quantization has a few
MAX_KERNELS = 8


@dataclass
class EngineState:
    """An engine's reports about itself at its last start."""

    #: by name, see FIELDS; names that end in _s are seconds. quantization is "none" for a model without any
    readings: dict[str, Reading] = field(default_factory=dict)
    #: kernels and backends that compute, by kind, each with the line that names it
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)
    #: a stage of the LogFormat, empty before the first
    stage: str = ""
    #: seconds from a stage's first line to the next stage's, if the log has times
    stage_s: dict[str, float] = field(default_factory=dict)
    #: loaded, and all
    shards: tuple[int, int] = (0, 0)
    warnings: list[str] = field(default_factory=list)
    #: names of readings beyond FIELDS
    also: tuple[str, ...] = ()

    def keep(self, name: str, value: Any, line: str) -> None:
        """Keep a reading with its line, unless it is None."""
        if value is not None:
            self.readings[name] = Reading(value, shorten_evidence(line))

    def add_kernel(self, kind: str, name: str, line: str) -> None:
        """Add a kernel or backend of a kind; one model may use several."""
        names = self.kernels.setdefault(kind, {})
        if name and len(names) < MAX_KERNELS:
            names.setdefault(name, shorten_evidence(line))

    def value(self, name: str) -> Any:
        """Return a reading's value, None if unknown."""
        return self.reading(name).value

    def reading(self, name: str) -> Reading:
        """Return a value with its evidence; UNKNOWN if the log does not hold it."""
        return self.readings.get(name, UNKNOWN)

    @property
    def ready(self) -> bool:
        """True if this start reported that it was ready; it may have stopped or failed since."""
        return self.value("ready") is True

    @property
    def failure(self) -> Reading:
        return self.reading("failure")

    @property
    def known(self) -> bool:
        """True if the log holds anything of an engine's start."""
        return bool(self.readings or self.stage)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON: values by name, null for unknown, and the evidence beside them."""
        return {
            **{name: self.value(name) for name in (*FIELDS, *self.also)},
            "stage": self.stage or None,
            "stage_s": self.stage_s,
            "warnings": self.warnings,
            "kernels": {kind: sorted(names) for kind, names in self.kernels.items()},
            "evidence": {name: self.readings[name].evidence for name in (*FIELDS, *self.also) if name in self.readings},
        }


def shorten_evidence(line: str) -> str:
    """Return a line as evidence, shortened if it is long."""
    line = line.strip()
    return line if len(line) <= MAX_EVIDENCE_CHARS else f"{line[:MAX_EVIDENCE_CHARS]} ..."


#: readings of sizes, with their unit in bytes. weights: with what CUDA and its libraries hold, where the log says that
WEIGHT_READINGS = {"weights_gib": GIB, "gpu_weights_mib": MIB}
KV_CACHE_READINGS = {"kv_cache_gib": GIB, "kv_cache_keys_gib": GIB, "kv_cache_values_gib": GIB, "kv_cache_mib": MIB}
KV_CACHE_READINGS |= {"recurrent_mib": MIB}
OTHER_MEMORY_READINGS = {"activation_gib": GIB, "non_torch_gib": GIB, "graphs_gib": GIB, "gpu_compute_mib": MIB}
#: in the order of a start
MEMORY_READINGS = (*WEIGHT_READINGS, *OTHER_MEMORY_READINGS, *KV_CACHE_READINGS)


def gpu_memory(state: EngineState) -> int | None:
    """Return the sum of weights, KV cache, activations and graphs in bytes; None if the log lacks the weights or the cache."""
    sizes = [_sum_bytes(state, readings) for readings in (WEIGHT_READINGS, KV_CACHE_READINGS, OTHER_MEMORY_READINGS)]
    return sum(sizes) if sizes[0] and sizes[1] else None


def _sum_bytes(state: EngineState, readings: dict[str, int]) -> int:
    values = ((state.value(name), unit) for name, unit in readings.items())
    return sum(int(value * unit) for value, unit in values if isinstance(value, int | float))


#: stages by their names on the screen, in the order of a start; each with the reading that holds its seconds
STAGE_READINGS: dict[str, str] = {
    "weights": "weights_s",
    "compile": "compile_s",
    "autotune": "autotune_s",
    "graphs": "graphs_s",
}
TENTHS_BELOW_S = 10.0


def stage_durations(state: EngineState) -> dict[str, float]:
    """Return seconds by stage, for the stages that the log tells."""
    values = {stage: state.value(reading) for stage, reading in STAGE_READINGS.items()}
    return {stage: float(seconds) for stage, seconds in values.items() if seconds is not None}


def format_stages(stages: Mapping[str, Any] | None) -> str:
    """Return stages in words, "weights 210 s, compile 95 s, graphs 40 s"; unknown stages and values that are not numbers are left
    out. Empty for none."""
    values = {stage: (stages or {}).get(stage) for stage in STAGE_READINGS}
    return ", ".join(f"{stage} {format_seconds(value)}" for stage, value in values.items() if _is_seconds(value))


def format_seconds(value: float) -> str:
    """Return seconds as text: whole seconds, tenths below ten."""
    return f"{value:.0f} s" if value >= TENTHS_BELOW_S else f"{value:.1f} s"


def _is_seconds(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
