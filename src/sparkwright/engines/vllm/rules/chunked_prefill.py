"""Chunked prefill: where it must be on, and what turning it off costs."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.vllm.defaults import CHUNKED_PREFILL_OPTIONAL_SINCE
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID, Case, Example, Finding, Way, both, graded, rule

ON = Way("leave chunked prefill on", {"enable-chunked-prefill": None})
NO_PREFIX = Way("turn prefix caching off", {"enable-prefix-caching": False})


@rule(
    "prefix-caching-needs-chunked-prefill",
    sources=(
        "vLLM 0.17.1, 0.33.0: VllmConfig asserts it for mamba cache mode 'align'",
        "0.32.0, a real start: exit 1, \"Chunked prefill is required for mamba cache mode 'align'.\"",
        "#50991: prefix caching is on by default for recurrent hybrids from 0.28 on",
    ),
    example=Example({"enable-prefix-caching": True, "enable-chunked-prefill": False}, HYBRID),
)
def needs_chunked_prefill(case: Case) -> Iterator[Finding]:
    """Prefix caching on a recurrent hybrid needs chunked prefill.
    A recurrent layer's state can only be cached at the end of a block, so a prompt has to be cut at block borders, and that is
    what chunked prefill does. The engine refuses to start with one on and the other off. From 0.28 on prefix caching is on by
    default for these models, so turning chunked prefill off is enough to be refused.
    """
    now = case.effective
    if not case.hybrid or now.chunked_prefill is not False or now.mamba_cache_mode in ("none", "all"):
        return
    severity = graded(both(case.within("0.15.0"), now.prefix_caching))
    if severity is None:
        return
    asked = "is asked for" if case.flag("enable-prefix-caching") else "is on by default from 0.28 on"
    said = f"chunked prefill is off, and prefix caching, which needs it on a recurrent model, {asked}"
    yield Finding(
        severity,
        "prefix-caching-needs-chunked-prefill",
        f"{said}: {case.engine} {'refuses' if severity == 'error' else 'may refuse'} to start.",
        (ON, NO_PREFIX),
        "vLLM's VllmConfig; a real start of 0.32.0",
        "enable-chunked-prefill",
    )


@rule(
    "unchunked-budget",
    sources=("vLLM 0.11.0, 0.17.1, 0.33.0: SchedulerConfig", "0.32.0, a real start: exit 1"),
    example=Example({"enable-chunked-prefill": False, "max-model-len": 32768, "max-num-batched-tokens": 4096}, DENSE),
)
def unchunked_budget(case: Case) -> Iterator[Finding]:
    """With chunked prefill off, a whole prompt must fit one step.
    A prompt that may not be cut takes one step of max-num-batched-tokens, so these must reach max-model-len; the engine refuses
    less. Where nothing is said it raises them itself, and the step's memory with them.
    """
    now = case.effective
    if now.chunked_prefill is not False or now.max_model_len is None or case.asked.platform == "ascend":
        return
    if case.flag("max-num-batched-tokens") is None or now.budget is None:
        return
    severity = graded(case.within(CHUNKED_PREFILL_OPTIONAL_SINCE))
    if now.budget >= now.max_model_len or severity is None:
        return
    length = now.max_model_len
    ways = (
        Way(f"raise max-num-batched-tokens to {length}", {"max-num-batched-tokens": length}),
        Way(f"lower max-model-len to {now.budget}", {"max-model-len": now.budget}),
        ON,
    )
    said = f"max-num-batched-tokens {now.budget} is less than max-model-len {length}, with chunked prefill off"
    yield Finding(
        severity,
        "unchunked-budget",
        f"{said}: {case.engine} refuses to start.",
        ways,
        "vLLM's SchedulerConfig; a real start of 0.32.0",
        "max-num-batched-tokens",
    )


@rule(
    "explicit-chunked-prefill",
    sources=(
        "vLLM 0.11.0, 0.17.1, 0.33.0: None and True give the same SchedulerConfig",
        "the claim: a blog's 47 -> 5.7 tok/s of March 2026, without reproduction",
    ),
    example=Example({"enable-chunked-prefill": True}, HYBRID),
)
def explicit_chunked_prefill(case: Case) -> Iterator[Finding]:
    """--enable-chunked-prefill changes nothing on a recurrent model.
    Chunked prefill is on by default for every generative model in every release that can load a recurrent hybrid, so the flag
    gives the same settings as its absence; it cannot be what made a server slow. Only a measurement can convict it: the
    config dumps of both starts side by side, then the decode rate of both.
    """
    if not case.hybrid or case.flag("enable-chunked-prefill") is not True:
        return
    said = "enable-chunked-prefill is redundant: it is on by default on every version that loads this model"
    yield Finding(
        "info",
        "explicit-chunked-prefill",
        f"{said}; that it slows a recurrent model down only a measurement could show.",
        (Way("leave it out", {"enable-chunked-prefill": None}),),
        "vLLM's source; equal config dumps",
        "enable-chunked-prefill",
    )
