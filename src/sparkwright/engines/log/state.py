"""An engine's reports about itself, as values. Every field is a value with its line as evidence, or unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
EVIDENCE_CHARS = 300
#: of one kind; a model with mixed quantization has a few
MOST_KERNELS = 8


@dataclass
class EngineState:
    """An engine's reports about itself at its last start."""

    #: by name, see FIELDS; names that end in _s are seconds. quantization is "none" for a model without any
    readings: dict[str, Reading] = field(default_factory=dict)
    #: kernels and backends that compute, by kind, each with the line that names it
    kernels: dict[str, dict[str, str]] = field(default_factory=dict)
    #: a stage of the LogBook, empty before the first
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
            self.readings[name] = Reading(value, shortened(line))

    def keep_kernel(self, kind: str, name: str, line: str) -> None:
        """Add a kernel or backend of a kind; one model may use several."""
        names = self.kernels.setdefault(kind, {})
        if name and len(names) < MOST_KERNELS:
            names.setdefault(name, shortened(line))

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


def shortened(line: str) -> str:
    """Return a line as evidence, shortened if it is long."""
    line = line.strip()
    return line if len(line) <= EVIDENCE_CHARS else f"{line[:EVIDENCE_CHARS]} ..."
