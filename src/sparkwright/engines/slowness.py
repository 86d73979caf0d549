"""Diagnosis of a slow server: its evidence compared with known causes. Pure functions.

These causes apply to every engine; causes of one engine are in its log.py. Sources: docs/measuring.md.
"""

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
#: noted: present, but it does not explain the rate. excluded: disproved by the evidence
Verdict = Literal["found", "possible", "unknown", "noted", "excluded"]
VERDICT_ORDER: tuple[Verdict, ...] = ("found", "possible", "unknown", "noted", "excluded")

MIN_AVAILABLE_BYTES = 4 * GIB
MAX_PAGE_CACHE_SHARE = 0.25
MIN_ACCEPTED_PER_DRAFT = 0.5
MAX_KV_CACHE_SHARE = 0.95
#: share of the expected rate below which a rate is slow if there is no verdict on it
SLOW_SHARE = 0.7
#: words in failures caused by a lack of memory
MEMORY_WORDS = ("gib", "out of memory", "no memory")
#: formats of quantised weights in model names
QUANTISED_FORMATS = ("FP8", "NVFP4", "AWQ", "GPTQ", "INT4", "MXFP4")


@dataclass(frozen=True)
class SlownessEvidence:
    """All evidence about a server; None or empty if unknown."""

    #: measured rate, as a share of the expected rate or of the baseline
    share: float | None = None
    #: the rate is below the expected one by more than noise
    is_slow: bool | None = None
    #: state of the GPU while decoding, as a string
    gpu_state: str = ""
    #: the GPU runs below its normal clock
    gpu_degraded: bool | None = None
    #: an EngineState as JSON
    log: Mapping[str, Any] | None = None
    #: (model, bytes) for each model that Ollama has loaded; None if Ollama did not answer
    ollama_models: Sequence[tuple[str, int]] | None = None
    #: /proc/meminfo, in bytes
    meminfo: Mapping[str, int] | None = None
    #: counters in /metrics, by name
    counters: Mapping[str, float] = field(default_factory=dict)
    #: requests running or waiting
    active_requests: float | None = None
    #: share of the KV cache in use, 0 to 1
    kv_cache_share: float | None = None
    #: requests preempted for lack of KV cache while the rate was measured
    preemptions: float | None = None
    #: accepted tokens per draft
    accepted_per_draft: float | None = None
    #: findings about the recipe
    findings: Sequence[Finding] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    #: number of thinking tokens in the answer to a request that does not mention thinking
    thinking_tokens: int | None = None
    #: total number of tokens in that answer
    answer_tokens: int = 0
    #: effective max-num-batched-tokens
    budget: int | None = None
    #: the engine computes on the requested GPU; None if unknown, or if it requests no GPU
    on_gpu: bool | None = None
    #: evidence for `on_gpu`
    on_gpu_evidence: str = ""
    engine: Engine = field(default_factory=lambda: engines.get_engine(engines.DEFAULT_ENGINE))

    def find_in_log(self, name: str) -> tuple[Any, str]:
        """Return a setting in the engine's log and the line with it; None and "" if the log does not contain it."""
        log = self.log or {}
        return log.get(name), strip_prefix((log.get("evidence") or {}).get(name, ""), self.engine.log)

    def find_warning(self, *texts: str) -> str:
        """Return the first warning in the log that contains one of these texts; "" if there is none."""
        lines = (self.log or {}).get("warnings", ())
        return strip_prefix(next((line for line in lines if any(text in line for text in texts)), ""), self.engine.log)


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of slowness, with the verdict on it."""

    name: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    #: how well it explains a slow stream; causes with the same verdict are sorted by weight, the largest first
    weight: int = 0
    #: it lowers the token rate; False for a cause that only delays answers
    lowers_rate: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {"cause": self.name, "verdict": self.verdict, "evidence": self.evidence, "fix": self.fix}


#: yields the causes that may apply to a server
Detector = Callable[[SlownessEvidence], Iterator[Cause]]

DETECTORS: list[Detector] = []


def _register(detect: Detector) -> Detector:
    DETECTORS.append(detect)
    return detect


def find_causes(evidence: SlownessEvidence) -> list[Cause]:
    """Return all causes, sorted as by `rank_causes`. The verdict on a cause that cannot explain the measured rate is `noted`."""
    is_fast = evidence.is_slow is False
    is_slow = evidence.is_slow or (
        evidence.is_slow is None and evidence.share is not None and evidence.share < SLOW_SHARE
    )
    causes: list[Cause] = []
    for detect in (*DETECTORS, *evidence.engine.slowness_detectors):
        for cause in detect(evidence):
            is_needless = is_fast and cause.verdict in ("found", "possible")
            is_unrelated = is_slow and cause.verdict == "found" and not cause.lowers_rate
            causes.append(replace(cause, verdict="noted") if is_needless or is_unrelated else cause)
    return rank_causes(causes)


def rank_causes(causes: Iterable[Cause]) -> list[Cause]:
    """Return the causes sorted by verdict and weight, the most likely first."""
    return sorted(causes, key=lambda cause: (VERDICT_ORDER.index(cause.verdict), -cause.weight))


def find_start_causes(evidence: SlownessEvidence, failure: str) -> list[Cause]:
    """Return the causes that can keep an engine from starting.

    failure: the engine's last message, empty if unknown; use of memory explains the failure only if the message is about memory.
    """
    is_memory_failure = any(word in failure.lower() for word in MEMORY_WORDS)
    verdict: Verdict = "found" if is_memory_failure else "noted" if failure else "possible"
    causes = [cause for detect in (detect_low_memory, detect_ollama_in_memory) for cause in detect(evidence)]
    memory_causes = [replace(cause, verdict=verdict) if cause.verdict == "found" else cause for cause in causes]
    errors = [finding for finding in evidence.findings if finding.severity == "error"]
    return rank_causes([*memory_causes, *report_rule_findings(replace(evidence, findings=errors))])


def list_likely_causes(evidence: SlownessEvidence) -> list[Cause]:
    """Return all causes that the evidence does not exclude."""
    return [cause for cause in find_causes(evidence) if cause.verdict != "excluded"]


def _format_flags(evidence: SlownessEvidence, concept: str) -> str:
    return " and ".join(concept_flags(evidence.engine.name, concept))


def _build_cause(name: str, message: str, fix: str, weight: int, *, found: bool) -> Cause:
    """Return a cause that the evidence either proves or excludes."""
    return Cause(name, "found", message, fix, weight) if found else Cause(name, "excluded", message)


# -- the host ------------------------------------------------------------------------------------------------------------------


@_register
def detect_cpu_use(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "it runs on the CPU"
    fix = "use an image that is built for this GPU and architecture: some arm64 images are CPU-only"
    if evidence.on_gpu is not None:
        yield _build_cause(name, evidence.on_gpu_evidence, fix, 140, found=not evidence.on_gpu)
    elif evidence.on_gpu_evidence:
        yield Cause(name, "unknown", evidence.on_gpu_evidence, weight=40)


@_register
def detect_slow_clock(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "the GPU is held at a low clock (power fault)"
    fix = "unplug the host's AC power for 60 s: a failed USB-PD negotiation keeps the clock at 500-850 MHz, even after a restart"
    if evidence.gpu_degraded is None:
        yield Cause(name, "unknown", evidence.gpu_state or "nvidia-smi returned no clock", fix, weight=90)
    elif evidence.gpu_degraded:
        yield Cause(name, "found", evidence.gpu_state, fix, weight=100)
    else:
        yield Cause(name, "excluded", evidence.gpu_state)


@_register
def detect_other_traffic(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "other requests share the engine"
    if evidence.active_requests is None:
        yield Cause(name, "unknown", "the server has no /metrics", weight=10)
    elif evidence.active_requests > 0:
        message = f"{format_count(int(evidence.active_requests), 'request')} running or waiting"
        yield Cause(name, "found", message, "measure when it is idle", weight=80)
    else:
        yield Cause(name, "excluded", "no request running or waiting")


@_register
def detect_ollama_in_memory(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "Ollama holds a model in the shared memory"
    if evidence.ollama_models is None:
        yield Cause(name, "unknown", "Ollama did not answer", weight=20)
    elif evidence.ollama_models:
        models = ", ".join(
            f"{model} ({f'{format_gib(size)} GiB' if size else 'size unknown'})"
            for model, size in evidence.ollama_models
        )
        yield Cause(
            name, "found", models, f"ollama stop {evidence.ollama_models[0][0]}, or `invoke restart`", weight=60
        )
    else:
        yield Cause(name, "excluded", "Ollama has no model loaded")


@_register
def detect_low_memory(evidence: SlownessEvidence) -> Iterator[Cause]:
    memory = evidence.meminfo or {}
    if "MemAvailable" not in memory:
        return
    swapped_bytes = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    available_bytes = memory["MemAvailable"]
    message = f"{format_gib(available_bytes)} GiB available, {format_gib(swapped_bytes)} GiB swapped out"
    is_low = available_bytes < MIN_AVAILABLE_BYTES or swapped_bytes > GIB
    flags_to_lower = _format_flags(evidence, "the share of memory") or _format_flags(evidence, "the longest context")
    stop_fix = "stop other processes (`invoke plan` lists the processes that use memory)"
    fix = f"lower {flags_to_lower}, or {stop_fix}" if flags_to_lower else stop_fix
    yield _build_cause("the memory is full", message, fix, 62, found=is_low)


@_register
def detect_large_page_cache(evidence: SlownessEvidence) -> Iterator[Cause]:
    memory = evidence.meminfo or {}
    cache_bytes = memory.get("Cached", 0) - memory.get("Shmem", 0)
    if not memory.get("MemTotal"):
        return
    is_large = cache_bytes / memory["MemTotal"] > MAX_PAGE_CACHE_SHARE
    fix = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, then `invoke restart`" if is_large else ""
    message = f"{format_gib(cache_bytes)} GiB of page cache"
    name = "the page cache takes memory from the GPU"
    yield Cause(name, "possible" if is_large else "excluded", message, fix, weight=5)


# -- the engine ------------------------------------------------------------------------------------------------------------------


@_register
def detect_heavy_weights(evidence: SlownessEvidence) -> Iterator[Cause]:
    quantisation, line = evidence.find_in_log("quantization")
    named_format = next((name for name in QUANTISED_FORMATS if name in evidence.model.upper()), "")
    if quantisation == "none" and named_format:
        name = f"BF16 weights although the model's name says {named_format}"
        yield Cause(name, "found", line, "check model.id and model.dir", weight=60)


@_register
def detect_low_acceptance(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.accepted_per_draft is not None:
        message = f"{evidence.accepted_per_draft:.2f} tokens accepted per draft"
        fix = "use another draft model, fewer speculative tokens, or no speculation"
        is_low = evidence.accepted_per_draft < MIN_ACCEPTED_PER_DRAFT
        yield _build_cause("few draft tokens are accepted", message, fix, 45, found=is_low)


@_register
def detect_full_cache(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.kv_cache_share is not None:
        flags_to_lower = [_format_flags(evidence, concept) for concept in ("requests at a time", "the longest context")]
        fix = f"lower {' or '.join(filter(None, flags_to_lower))}" if any(flags_to_lower) else ""
        # an idle server keeps prefixes for later requests, and evicts them as soon as a request needs the space
        is_idle = evidence.active_requests == 0 and not evidence.preemptions
        is_full = evidence.kv_cache_share > MAX_KV_CACHE_SHARE
        prefixes = ", only by prefixes kept for later requests" if is_idle and is_full else ""
        message = f"{evidence.kv_cache_share:.0%} used{prefixes}"
        yield _build_cause("the KV cache is full", message, fix, 40, found=is_full and not is_idle)


@_register
def detect_thinking(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.thinking_tokens is None:
        return
    name = "reasoning tokens precede the answer"
    if evidence.thinking_tokens:
        message = f"{evidence.thinking_tokens} of the first {evidence.answer_tokens} tokens were reasoning"
        off_setting, flag = '{"enable_thinking": false}', _format_flags(evidence, "the template's defaults")
        fix = (
            f"{flag}: {off_setting}, or the same setting in each request"
            if flag
            else f"chat_template_kwargs: {off_setting} in each request"
        )
        yield Cause(name, "found", message, fix, 15, lowers_rate=False)
    else:
        yield Cause(name, "excluded", "no reasoning in the first tokens")


@_register
def report_rule_findings(evidence: SlownessEvidence) -> Iterator[Cause]:
    for finding in evidence.findings:
        if finding.severity != "info":
            fixes = "; or ".join(fix.text for fix in finding.ways_out)
            weight = 50 if finding.severity == "error" else 20
            yield Cause(f"a flag: {finding.rule}", "possible", finding.sentence, fixes, weight)
