"""What may make a server slow, as values: what was seen of it, and a cause with its evidence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import Finding
from sparkwright.engines.log.reader import message

#: found: what was seen explains it. possible: nothing speaks against it, and nothing proves it. unknown: nobody could look.
#: noted: it was seen, and explains nothing, for nothing is slow. excluded: what was seen speaks against it
Verdict = Literal["found", "possible", "unknown", "noted", "excluded"]
ORDER: tuple[Verdict, ...] = ("found", "possible", "unknown", "noted", "excluded")


@dataclass(frozen=True)
class Seen:
    """All evidence; None or empty where something was not inspected or gave no answer.

    share: the measured rate of what is expected (or of the baseline). gpu: its state in words while it decoded, gpu_degraded what
    that means. log: an EngineState as JSON. ollama: (model, bytes) in memory, None when it could not be asked. memory: of
    /proc/meminfo, bytes. counters, cache: of /metrics. findings: of the rules over the recipe's flags. thought: tokens of thinking
    among `answered` when nothing was said about it. budget: max-num-batched-tokens as it is effective. slow: whether the rate is
    below what is expected by more than noise; None where nobody could tell. on_gpu: whether it computes on the GPU that it asks
    for, None where it asks for none or nobody could tell; on_gpu_why: what tells it.
    """

    share: float | None = None
    slow: bool | None = None
    gpu: str = ""
    gpu_degraded: bool | None = None
    log: Mapping[str, Any] | None = None
    ollama: Sequence[tuple[str, int]] | None = None
    memory: Mapping[str, int] | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    busy: float | None = None
    kv_used: float | None = None
    #: requests that the engine put off while the rate was measured, for want of KV cache
    preempted: float | None = None
    acceptance: float | None = None
    findings: Sequence[Finding] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    thought: int | None = None
    answered: int = 0
    budget: int | None = None
    on_gpu: bool | None = None
    on_gpu_why: str = ""
    engine: Engine = field(default_factory=lambda: engines.of(engines.USUAL))

    def in_log(self, name: str) -> tuple[Any, str]:
        """What the engine's log says of a setting, and the line; None when it does not."""
        log = self.log or {}
        return log.get(name), message((log.get("evidence") or {}).get(name, ""), self.engine.log)

    def warned(self, *parts: str) -> str:
        """The first warning of the log that holds one of these; "" when none does."""
        lines = (self.log or {}).get("warnings", ())
        return message(next((line for line in lines if any(part in line for part in parts)), ""), self.engine.log)


@dataclass(frozen=True, slots=True)
class Cause:
    """name: short. weight: how well it explains a slow stream; the larger first among equals. of_rate: False for what makes
    answers late without making tokens slow."""

    name: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    weight: int = 0
    of_rate: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"cause": self.name, "verdict": self.verdict, "evidence": self.evidence, "fix": self.fix}


#: what may be so of one server
Detector = Callable[[Seen], Iterator[Cause]]
