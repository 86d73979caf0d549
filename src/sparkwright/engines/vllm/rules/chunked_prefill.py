"""Rules about chunked prefill: models that require it, and settings that turning it off requires."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.prediction.defaults import CHUNKED_PREFILL_OPTIONAL_SINCE
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID, Case, Example, both, graded, rule

ON = Way("leave chunked prefill on", {"enable-chunked-prefill": None})
NO_PREFIX = Way("turn prefix caching off", {"enable-prefix-caching": False})


@rule(
    "prefix-caching-needs-chunked-prefill",
    sources=(
        "vLLM 0.17.1, 0.33.0: VllmConfig asserts it for mamba cache mode 'align'",
        "0.32.0, a real start: exit 1, \"Chunked prefill is required for mamba cache mode 'align'.\"",
        "#50991: prefix caching is on by default for recurrent hybrids from 0.28 on",
    ),
    example=Example({"enable-prefix-caching": True, "enable-chunked-prefill": False}, model=HYBRID),
)
def needs_chunked_prefill(case: Case) -> Iterator[Finding]:
    """Prefix caching on a recurrent hybrid needs chunked prefill.
    A recurrent layer's state can only be cached at the end of a block, so prompts must be split at block boundaries, which is
    what chunked prefill does. The engine refuses to start with prefix caching on and chunked prefill off. From 0.28 on prefix caching
    is on by default for these models, so turning chunked prefill off alone is refused.
    """
    now = case.effective
    if not case.hybrid or now.chunked_prefill is not False or now.mamba_cache_mode in ("none", "all"):
        return
    severity = graded(both(case.within("0.15.0"), now.prefix_caching))
    if severity is None:
        return
    reason = "is set" if case.flag("enable-prefix-caching") else "is on by default from 0.28 on"
    sentence = f"chunked prefill is off, but prefix caching, which needs it on a recurrent model, {reason}"
    sentence = f"{sentence}: {case.engine} {'refuses' if severity == 'error' else 'may refuse'} to start."
    source = "vLLM's VllmConfig; a real start of 0.32.0"
    yield Finding(severity, sentence, (ON, NO_PREFIX), source, "enable-chunked-prefill")


@rule(
    "unchunked-budget",
    sources=("vLLM 0.11.0, 0.17.1, 0.33.0: SchedulerConfig", "0.32.0, a real start: exit 1"),
    example=Example(
        {"enable-chunked-prefill": False, "max-model-len": 32768, "max-num-batched-tokens": 4096}, model=DENSE
    ),
)
def unchunked_budget(case: Case) -> Iterator[Finding]:
    """With chunked prefill off, a whole prompt must fit in one step.
    A prompt that cannot be split takes one step, so max-num-batched-tokens must be at least max-model-len; the engine refuses
    less. If it is not set the engine raises it, and with it the memory for a step.
    """
    now, length = case.effective, case.effective.max_model_len
    if now.chunked_prefill is not False or length is None or case.asked.platform == "ascend":
        return
    severity = graded(case.within(CHUNKED_PREFILL_OPTIONAL_SINCE))
    if case.flag("max-num-batched-tokens") is None or now.budget is None or now.budget >= length or severity is None:
        return
    ways = (
        Way(f"raise max-num-batched-tokens to {length}", {"max-num-batched-tokens": length}),
        Way(f"lower max-model-len to {now.budget}", {"max-model-len": now.budget}),
        ON,
    )
    sentence = f"max-num-batched-tokens {now.budget} is less than max-model-len {length}, with chunked prefill off"
    sentence = f"{sentence}: {case.engine} refuses to start."
    yield Finding(severity, sentence, ways, "vLLM's SchedulerConfig; a real start of 0.32.0", "max-num-batched-tokens")


@rule(
    "explicit-chunked-prefill",
    sources=(
        "vLLM 0.11.0, 0.17.1, 0.33.0: None and True give the same SchedulerConfig",
        "the claim: a blog post of March 2026, 47 -> 5.7 tok/s, not reproduced",
    ),
    example=Example({"enable-chunked-prefill": True}, model=HYBRID),
)
def explicit_chunked_prefill(case: Case) -> Iterator[Finding]:
    """--enable-chunked-prefill changes nothing on a recurrent model.
    Chunked prefill is on by default for every generative model in every release that can load a recurrent hybrid, so the
    settings are the same with and without the flag, and it cannot be why a server is slow. To check, compare the config dumps
    of both starts, then measure the decode rate of both.
    """
    if not case.hybrid or case.flag("enable-chunked-prefill") is not True:
        return
    sentence = (
        "enable-chunked-prefill is redundant: chunked prefill is on by default in every version that loads this model;"
        " a claim that it slows down a recurrent model needs a measurement."
    )
    way = Way("remove it", {"enable-chunked-prefill": None})
    yield Finding("info", sentence, (way,), "vLLM's source; equal config dumps", "enable-chunked-prefill")
