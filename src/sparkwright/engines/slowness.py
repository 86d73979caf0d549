"""Causes of slowness that every engine shares. Causes of one engine alone are in its folder, as causes.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparkwright.engines import engine as engines
from sparkwright.engines.engine import Engine
from sparkwright.engines.findings import Finding
from sparkwright.engines.log.reader import message
from sparkwright.engines.options import of_concept
from sparkwright.units import GIB, gib
from sparkwright.visible import count

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


# Diagnosis of a slow server: evidence compared with known causes. Pure; the most likely first.
#
# Measured causes come before possible ones; cause.py explains the verdicts. Sources: docs/measuring.md.

__all__ = ["Cause", "Seen", "Verdict", "causes", "likely", "of_a_start", "ranked"]

LITTLE_BYTES = 4 * GIB
MUCH_CACHE = 0.25
LITTLE_ACCEPTED = 0.5
#: below this share of the expected rate the rate itself needs a cause
SLOW = 0.7
#: words of failures for lack of memory
MEMORY_WORDS = ("gib", "out of memory", "no memory")

DETECTORS: list[Detector] = []


def _detector(detect: Detector) -> Detector:
    DETECTORS.append(detect)
    return detect


def causes(seen: Seen) -> list[Cause]:
    """Return all causes: those found, then possible, unknown, noted and excluded ones."""
    slow = seen.slow if seen.slow is not None else seen.share is not None and seen.share < SLOW
    detectors = (*DETECTORS, *seen.engine.causes)
    return ranked(_held(cause, slow=slow, fast=seen.slow is False) for detect in detectors for cause in detect(seen))


def ranked(found: Iterable[Cause]) -> list[Cause]:
    """Return the causes sorted by verdict, measured before possible; equal verdicts by weight."""
    return sorted(found, key=lambda cause: (ORDER.index(cause.verdict), -cause.weight))


def _held(cause: Cause, *, slow: bool, fast: bool) -> Cause:
    """Return a cause, noted only if it contradicts the rate: a fast server needs no cause, and a cause of late answers explains
    no slow rate."""
    aside = fast and cause.verdict in ("found", "possible")
    aside = aside or (slow and cause.verdict == "found" and not cause.of_rate)
    return replace(cause, verdict="noted") if aside else cause


def of_a_start(seen: Seen, failure: str) -> list[Cause]:
    """Return the causes that can keep an engine from starting.

    failure: its last words; if they are about memory, what holds memory is the reason.
    """
    short = any(word in failure.lower() for word in MEMORY_WORDS)
    verdict: Verdict = "found" if short else "noted" if failure else "possible"
    rows = [cause for detect in (little_memory, ollama_in_memory) for cause in detect(seen)]
    held = [replace(cause, verdict=verdict) if cause.verdict == "found" else cause for cause in rows]
    errors = [finding for finding in seen.findings if finding.severity == "error"]
    return ranked([*held, *rules(replace(seen, findings=errors))])


def likely(seen: Seen) -> list[Cause]:
    """Return the causes without those excluded."""
    return [cause for cause in causes(seen) if cause.verdict != "excluded"]


def _flags(seen: Seen, concept: str) -> str:
    """Return this engine's flags for a concept, as "cache-type-k and cache-type-v"; empty if it has none."""
    return " and ".join(of_concept(seen.engine.name, concept))


def _measured(name: str, message: str, fix: str, weight: int, *, found: bool) -> Cause:
    """Return a cause that a measurement decides."""
    return Cause(name, "found", message, fix, weight) if found else Cause(name, "excluded", message)


# -- the host ------------------------------------------------------------------------------------------------------------------


@_detector
def on_the_cpu(seen: Seen) -> Iterator[Cause]:
    name = "it runs on the CPU"
    fix = "take an image that is built for this GPU and architecture: some arm64 images are CPU-only"
    if seen.on_gpu is not None:
        yield _measured(name, seen.on_gpu_why, fix, 140, found=not seen.on_gpu)
    elif seen.on_gpu_why:
        yield Cause(name, "unknown", seen.on_gpu_why, weight=40)


@_detector
def slow_clock(seen: Seen) -> Iterator[Cause]:
    name = "the GPU is held at a low clock (power fault)"
    fix = "cut its AC power for 60 s: a failed USB-PD negotiation leaves it at 500-850 MHz; a restart does not heal it"
    if seen.gpu_degraded is None:
        yield Cause(name, "unknown", seen.gpu or "nvidia-smi returned no clock", fix, weight=90)
    elif seen.gpu_degraded:
        yield Cause(name, "found", seen.gpu, fix, weight=100)
    else:
        yield Cause(name, "excluded", seen.gpu)


@_detector
def other_traffic(seen: Seen) -> Iterator[Cause]:
    name = "other requests share the engine"
    if seen.busy is None:
        yield Cause(name, "unknown", "the server shows no /metrics", weight=10)
    elif seen.busy > 0:
        yield Cause(
            name,
            "found",
            f"{count(int(seen.busy), 'request')} running or waiting",
            "measure when it is idle",
            weight=80,
        )
    else:
        yield Cause(name, "excluded", "no request running or waiting")


@_detector
def ollama_in_memory(seen: Seen) -> Iterator[Cause]:
    name = "Ollama holds a model in the shared memory"
    if seen.ollama is None:
        yield Cause(name, "unknown", "Ollama does not answer", weight=20)
    elif seen.ollama:
        models = ", ".join(f"{model} ({f'{gib(size)} GiB' if size else 'size unknown'})" for model, size in seen.ollama)
        yield Cause(name, "found", models, f"ollama stop {seen.ollama[0][0]}, or `invoke restart`", weight=60)
    else:
        yield Cause(name, "excluded", "Ollama holds none")


@_detector
def little_memory(seen: Seen) -> Iterator[Cause]:
    memory = seen.memory or {}
    if "MemAvailable" not in memory:
        return
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    available = memory["MemAvailable"]
    message = f"{gib(available)} GiB available, {gib(swapped)} GiB swapped out"
    tight = available < LITTLE_BYTES or swapped > GIB
    lower = _flags(seen, "the share of memory") or _flags(seen, "the longest context")
    stop = "stop other processes (`invoke plan` names who holds memory)"
    fix = f"lower {lower}, or {stop}" if lower else stop
    yield _measured("the memory is full", message, fix, 62, found=tight)


@_detector
def page_cache(seen: Seen) -> Iterator[Cause]:
    memory = seen.memory or {}
    cache = memory.get("Cached", 0) - memory.get("Shmem", 0)
    if not memory.get("MemTotal"):
        return
    much = cache / memory["MemTotal"] > MUCH_CACHE
    fix = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, then `invoke restart`" if much else ""
    message = f"{gib(cache)} GiB of page cache"
    yield Cause("page cache stands in the GPU's way", "possible" if much else "excluded", message, fix, weight=5)


# -- the engine ------------------------------------------------------------------------------------------------------------------


@_detector
def heavy_weights(seen: Seen) -> Iterator[Cause]:
    message, line = seen.in_log("quantization")
    fewer = next((word for word in ("FP8", "NVFP4", "AWQ", "GPTQ", "INT4", "MXFP4") if word in seen.model.upper()), "")
    if message == "none" and fewer:
        yield Cause(f"BF16 weights where {fewer} was meant", "found", line, "look at model.id and model.dir", weight=60)


@_detector
def little_accepted(seen: Seen) -> Iterator[Cause]:
    if seen.acceptance is not None:
        message = f"{seen.acceptance:.2f} tokens accepted a draft"
        fix = "another draft, fewer speculative tokens, or none"
        yield _measured("speculation guesses badly", message, fix, 45, found=seen.acceptance < LITTLE_ACCEPTED)


@_detector
def cache_full(seen: Seen) -> Iterator[Cause]:
    if seen.kv_used is not None:
        lower = [_flags(seen, item) for item in ("requests at a time", "the longest context")]
        fix = f"lower {' or '.join(filter(None, lower))}" if any(lower) else ""
        # prefixes kept for later requests are evicted as soon as a request needs the space
        idle = seen.busy == 0 and not seen.preempted
        kept = ", by prefixes that an idle server keeps" if idle and seen.kv_used > 0.95 else ""
        message = f"{seen.kv_used:.0%} used{kept}"
        yield _measured("the KV cache is full", message, fix, 40, found=seen.kv_used > 0.95 and not idle)


@_detector
def thinking(seen: Seen) -> Iterator[Cause]:
    if seen.thought is None:
        return
    name = "it thinks before it answers"
    if seen.thought:
        message = f"{seen.thought} of the first {seen.answered} tokens were thinking"
        off, flag = '{"enable_thinking": false}', _flags(seen, "the template's defaults")
        fix = f"{flag}: {off}, or in each request" if flag else f"chat_template_kwargs: {off} in each request"
        yield Cause(name, "found", f"{message}: they come before any answer", fix, 15, of_rate=False)
    else:
        yield Cause(name, "excluded", "no thinking in its first tokens")


@_detector
def rules(seen: Seen) -> Iterator[Cause]:
    """Yield the findings of lint as possible causes."""
    for finding in seen.findings:
        if finding.severity != "info":
            fix = "; or ".join(way.text for way in finding.ways_out)
            weight = 50 if finding.severity == "error" else 20
            yield Cause(f"a flag: {finding.rule}", "possible", finding.sentence, fix, weight)
