"""Causes of slowness that every engine shares. Causes of one engine alone are in its folder, in log.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import Finding
from sparkwright.engines.log.reader import strip_prefix
from sparkwright.engines.options import concept_flags
from sparkwright.units import GIB, format_gib
from sparkwright.visible import format_count

#: found: the evidence explains the slowness. possible: neither proved nor disproved. unknown: there is no evidence.
#: noted: found, but explains nothing, for nothing is slow. excluded: the evidence disproves it
Verdict = Literal["found", "possible", "unknown", "noted", "excluded"]
VERDICT_ORDER: tuple[Verdict, ...] = ("found", "possible", "unknown", "noted", "excluded")


@dataclass(frozen=True)
class SlownessEvidence:
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
    engine: Engine = field(default_factory=lambda: engines.get_engine(engines.DEFAULT_ENGINE))

    def find_in_log(self, name: str) -> tuple[Any, str]:
        """Return a setting in the engine's log, and its line; None if the log does not have it."""
        log = self.log or {}
        return log.get(name), strip_prefix((log.get("evidence") or {}).get(name, ""), self.engine.log)

    def find_warning(self, *parts: str) -> str:
        """Return the first warning of the log that holds one of these texts; "" if none does."""
        lines = (self.log or {}).get("warnings", ())
        return strip_prefix(next((line for line in lines if any(part in line for part in parts)), ""), self.engine.log)


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
Detector = Callable[[SlownessEvidence], Iterator[Cause]]


# Diagnosis of a slow server: evidence compared with known causes. Pure; the most likely first.
#
# Measured causes come before possible ones; cause.py explains the verdicts. Sources: docs/measuring.md.

__all__ = [
    "Cause",
    "SlownessEvidence",
    "Verdict",
    "find_causes",
    "find_start_causes",
    "list_likely_causes",
    "rank_causes",
]

MIN_AVAILABLE_BYTES = 4 * GIB
MAX_PAGE_CACHE_SHARE = 0.25
MIN_ACCEPTED_PER_DRAFT = 0.5
#: below this share of the expected rate the rate itself needs a cause
SLOW_SHARE = 0.7
#: words of failures for lack of memory
MEMORY_WORDS = ("gib", "out of memory", "no memory")

DETECTORS: list[Detector] = []


def _register(detect: Detector) -> Detector:
    DETECTORS.append(detect)
    return detect


def find_causes(evidence: SlownessEvidence) -> list[Cause]:
    """Return all causes: those found, then possible, unknown, noted and excluded ones."""
    slow = evidence.slow if evidence.slow is not None else evidence.share is not None and evidence.share < SLOW_SHARE
    detectors = (*DETECTORS, *evidence.engine.causes)
    return rank_causes(
        _downgrade_contradicted(cause, slow=slow, fast=evidence.slow is False)
        for detect in detectors
        for cause in detect(evidence)
    )


def rank_causes(causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes sorted by verdict, measured before possible; equal verdicts by weight."""
    return sorted(causes, key=lambda cause: (VERDICT_ORDER.index(cause.verdict), -cause.weight))


def _downgrade_contradicted(cause: Cause, *, slow: bool, fast: bool) -> Cause:
    """Return a cause, noted only if it contradicts the rate: a fast server needs no cause, and a cause of late answers explains
    no slow rate."""
    is_contradicted = fast and cause.verdict in ("found", "possible")
    is_contradicted = is_contradicted or (slow and cause.verdict == "found" and not cause.of_rate)
    return replace(cause, verdict="noted") if is_contradicted else cause


def find_start_causes(evidence: SlownessEvidence, failure: str) -> list[Cause]:
    """Return the causes that can keep an engine from starting.

    failure: its last words; if they are about memory, what holds memory is the reason.
    """
    lacks_memory = any(word in failure.lower() for word in MEMORY_WORDS)
    verdict: Verdict = "found" if lacks_memory else "noted" if failure else "possible"
    rows = [cause for detect in (low_memory, ollama_in_memory) for cause in detect(evidence)]
    held = [replace(cause, verdict=verdict) if cause.verdict == "found" else cause for cause in rows]
    errors = [finding for finding in evidence.findings if finding.severity == "error"]
    return rank_causes([*held, *rule_findings(replace(evidence, findings=errors))])


def list_likely_causes(evidence: SlownessEvidence) -> list[Cause]:
    """Return the causes without those excluded."""
    return [cause for cause in find_causes(evidence) if cause.verdict != "excluded"]


def _format_flags(evidence: SlownessEvidence, concept: str) -> str:
    """Return this engine's flags for a concept, as "cache-type-k and cache-type-v"; empty if it has none."""
    return " and ".join(concept_flags(evidence.engine.name, concept))


def _decide_cause(name: str, message: str, fix: str, weight: int, *, found: bool) -> Cause:
    """Return a cause that a measurement decides."""
    return Cause(name, "found", message, fix, weight) if found else Cause(name, "excluded", message)


# -- the host ------------------------------------------------------------------------------------------------------------------


@_register
def on_the_cpu(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "it runs on the CPU"
    fix = "take an image that is built for this GPU and architecture: some arm64 images are CPU-only"
    if evidence.on_gpu is not None:
        yield _decide_cause(name, evidence.on_gpu_why, fix, 140, found=not evidence.on_gpu)
    elif evidence.on_gpu_why:
        yield Cause(name, "unknown", evidence.on_gpu_why, weight=40)


@_register
def slow_clock(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "the GPU is held at a low clock (power fault)"
    fix = "cut its AC power for 60 s: a failed USB-PD negotiation leaves it at 500-850 MHz; a restart does not heal it"
    if evidence.gpu_degraded is None:
        yield Cause(name, "unknown", evidence.gpu or "nvidia-smi returned no clock", fix, weight=90)
    elif evidence.gpu_degraded:
        yield Cause(name, "found", evidence.gpu, fix, weight=100)
    else:
        yield Cause(name, "excluded", evidence.gpu)


@_register
def other_traffic(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "other requests share the engine"
    if evidence.busy is None:
        yield Cause(name, "unknown", "the server shows no /metrics", weight=10)
    elif evidence.busy > 0:
        yield Cause(
            name,
            "found",
            f"{format_count(int(evidence.busy), 'request')} running or waiting",
            "measure when it is idle",
            weight=80,
        )
    else:
        yield Cause(name, "excluded", "no request running or waiting")


@_register
def ollama_in_memory(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "Ollama holds a model in the shared memory"
    if evidence.ollama is None:
        yield Cause(name, "unknown", "Ollama does not answer", weight=20)
    elif evidence.ollama:
        models = ", ".join(
            f"{model} ({f'{format_gib(size)} GiB' if size else 'size unknown'})" for model, size in evidence.ollama
        )
        yield Cause(name, "found", models, f"ollama stop {evidence.ollama[0][0]}, or `invoke restart`", weight=60)
    else:
        yield Cause(name, "excluded", "Ollama holds none")


@_register
def low_memory(evidence: SlownessEvidence) -> Iterator[Cause]:
    memory = evidence.memory or {}
    if "MemAvailable" not in memory:
        return
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    available = memory["MemAvailable"]
    message = f"{format_gib(available)} GiB available, {format_gib(swapped)} GiB swapped out"
    is_low = available < MIN_AVAILABLE_BYTES or swapped > GIB
    lower = _format_flags(evidence, "the share of memory") or _format_flags(evidence, "the longest context")
    stop = "stop other processes (`invoke plan` names who holds memory)"
    fix = f"lower {lower}, or {stop}" if lower else stop
    yield _decide_cause("the memory is full", message, fix, 62, found=is_low)


@_register
def page_cache(evidence: SlownessEvidence) -> Iterator[Cause]:
    memory = evidence.memory or {}
    cache = memory.get("Cached", 0) - memory.get("Shmem", 0)
    if not memory.get("MemTotal"):
        return
    is_large = cache / memory["MemTotal"] > MAX_PAGE_CACHE_SHARE
    fix = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, then `invoke restart`" if is_large else ""
    message = f"{format_gib(cache)} GiB of page cache"
    yield Cause("page cache stands in the GPU's way", "possible" if is_large else "excluded", message, fix, weight=5)


# -- the engine ------------------------------------------------------------------------------------------------------------------


@_register
def heavy_weights(evidence: SlownessEvidence) -> Iterator[Cause]:
    message, line = evidence.find_in_log("quantization")
    fewer = next(
        (word for word in ("FP8", "NVFP4", "AWQ", "GPTQ", "INT4", "MXFP4") if word in evidence.model.upper()), ""
    )
    if message == "none" and fewer:
        yield Cause(f"BF16 weights where {fewer} was meant", "found", line, "look at model.id and model.dir", weight=60)


@_register
def low_acceptance(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.acceptance is not None:
        message = f"{evidence.acceptance:.2f} tokens accepted a draft"
        fix = "another draft, fewer speculative tokens, or none"
        yield _decide_cause(
            "speculation guesses badly", message, fix, 45, found=evidence.acceptance < MIN_ACCEPTED_PER_DRAFT
        )


@_register
def cache_full(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.kv_used is not None:
        lower = [_format_flags(evidence, item) for item in ("requests at a time", "the longest context")]
        fix = f"lower {' or '.join(filter(None, lower))}" if any(lower) else ""
        # prefixes kept for later requests are evicted as soon as a request needs the space
        idle = evidence.busy == 0 and not evidence.preempted
        kept = ", by prefixes that an idle server keeps" if idle and evidence.kv_used > 0.95 else ""
        message = f"{evidence.kv_used:.0%} used{kept}"
        yield _decide_cause("the KV cache is full", message, fix, 40, found=evidence.kv_used > 0.95 and not idle)


@_register
def thinking(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.thought is None:
        return
    name = "it thinks before it answers"
    if evidence.thought:
        message = f"{evidence.thought} of the first {evidence.answered} tokens were thinking"
        off, flag = '{"enable_thinking": false}', _format_flags(evidence, "the template's defaults")
        fix = f"{flag}: {off}, or in each request" if flag else f"chat_template_kwargs: {off} in each request"
        yield Cause(name, "found", f"{message}: they come before any answer", fix, 15, of_rate=False)
    else:
        yield Cause(name, "excluded", "no thinking in its first tokens")


@_register
def rule_findings(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield the findings of lint as possible causes."""
    for finding in evidence.findings:
        if finding.severity != "info":
            fix = "; or ".join(way.text for way in finding.ways_out)
            weight = 50 if finding.severity == "error" else 20
            yield Cause(f"a flag: {finding.rule}", "possible", finding.sentence, fix, weight)
