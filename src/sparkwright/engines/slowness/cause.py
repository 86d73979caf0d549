"""Evidence about a slow server, and possible causes, as values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import Finding
from sparkwright.engines.log.reader import message

#: found: the evidence explains the slowness. possible: neither proved nor disproved. unknown: there is no evidence.
#: noted: found, but explains nothing, for nothing is slow. excluded: the evidence disproves it
Verdict = Literal["found", "possible", "unknown", "noted", "excluded"]
ORDER: tuple[Verdict, ...] = ("found", "possible", "unknown", "noted", "excluded")


@dataclass(frozen=True)
class Seen:
    """All evidence about a server; None or empty if something was not inspected or gave no answer."""

    #: measured rate, as a share of the expected rate (or of the baseline)
    share: float | None = None
    #: the rate is below the expected one by more than noise; None if not known
    slow: bool | None = None
    #: state of the GPU while decoding, in words
    gpu: str = ""
    #: the GPU runs below its normal clock; None if not known
    gpu_degraded: bool | None = None
    #: an EngineState as JSON
    log: Mapping[str, Any] | None = None
    #: (model, bytes) that Ollama holds in memory; None if Ollama did not answer
    ollama: Sequence[tuple[str, int]] | None = None
    #: of /proc/meminfo, bytes
    memory: Mapping[str, int] | None = None
    #: of /metrics
    counters: Mapping[str, float] = field(default_factory=dict)
    #: requests running or waiting
    busy: float | None = None
    #: share of the KV cache in use, 0 to 1
    kv_used: float | None = None
    #: requests preempted for lack of KV cache while the rate was measured
    preempted: float | None = None
    #: accepted tokens per draft
    acceptance: float | None = None
    #: of the rules about the recipe
    findings: Sequence[Finding] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    #: thinking tokens among `answered`, for a request that does not mention thinking
    thought: int | None = None
    answered: int = 0
    #: effective max-num-batched-tokens
    budget: int | None = None
    #: the engine computes on the GPU that it requests; None if it requests none, or not known
    on_gpu: bool | None = None
    #: evidence for `on_gpu`
    on_gpu_why: str = ""
    engine: Engine = field(default_factory=lambda: engines.of(engines.USUAL))

    def in_log(self, name: str) -> tuple[Any, str]:
        """Return a setting in the engine's log, and its line; None if the log does not have it."""
        log = self.log or {}
        return log.get(name), message((log.get("evidence") or {}).get(name, ""), self.engine.log)

    def warned(self, *parts: str) -> str:
        """Return the first warning of the log that holds one of these texts; "" if none does."""
        lines = (self.log or {}).get("warnings", ())
        return message(next((line for line in lines if any(part in line for part in parts)), ""), self.engine.log)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of slowness, with the verdict on it."""

    #: short
    name: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    #: how well it explains a slow stream; sorts causes of equal verdict, the largest first
    weight: int = 0
    #: False for a cause of late answers that does not make tokens slow
    of_rate: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {"cause": self.name, "verdict": self.verdict, "evidence": self.evidence, "fix": self.fix}


#: yields the causes that may apply to a server
Detector = Callable[[Seen], Iterator[Cause]]
