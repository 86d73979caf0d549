"""Rules about Ascend-vLLM (`platform: ascend`) and its scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.findings import Finding, Way
from sparkwright.engines.vllm.prediction import ascend
from sparkwright.engines.vllm.rules.rule import Case, Example, rule

SOURCE = "Ascend-vLLM's guide to its features and scheduler"
CHUNKED = {ascend.CONFIG: {ascend.SCHEDULER: {ascend.ENABLED: True, ascend.CHUNKED: True}}}


@rule(
    "ascend-exclusive",
    sources=(SOURCE,),
    example=Example({"enable-prefix-caching": True, **CHUNKED}, platform="ascend"),
)
def exclusive(case: Case) -> Iterator[Finding]:
    """On Ascend chunked prefill excludes prefix caching and a quantised KV cache.
    Turn one of them off; Ascend's scheduler disables chunked prefill unless chunked_prefill_enabled is set.
    """
    if case.asked.platform != "ascend" or case.effective.chunked_prefill is not True:
        return
    off = Way("turn chunked prefill off", ascend.with_scheduler(case.asked.flags, enabled=True, chunked=False))
    if case.flag("enable-prefix-caching") is True:
        ways = (off, Way("turn prefix caching off", {"enable-prefix-caching": False}))
        sentence = "chunked prefill and prefix caching exclude each other on Ascend."
        yield Finding("error", sentence, ways, SOURCE, "enable-prefix-caching")
    if str(case.flag("kv-cache-dtype") or "auto") != "auto":
        ways = (off, Way("use an unquantised KV cache", {"kv-cache-dtype": None}))
        sentence = "chunked prefill and a quantised KV cache exclude each other on Ascend."
        yield Finding("error", sentence, ways, SOURCE, "kv-cache-dtype")


@rule(
    "ascend-budget",
    sources=(SOURCE,),
    example=Example({"max-num-batched-tokens": 1000, "max-model-len": 4096}, platform="ascend"),
)
def budget(case: Case) -> Iterator[Finding]:
    """On Ascend max-num-batched-tokens must be a multiple of 256, and at least max-model-len.
    Its kernels process blocks of 256 tokens, and its scheduler does not split prompts.
    """
    now = case.effective
    if case.asked.platform != "ascend" or now.budget is None:
        return
    least = max(ascend.BUDGET_STEP, now.max_model_len or 0)
    wanted = -(-max(least, now.budget) // ascend.BUDGET_STEP) * ascend.BUDGET_STEP
    if wanted != now.budget:
        sentence = f"max-num-batched-tokens {now.budget} must be a multiple of {ascend.BUDGET_STEP} and at least {least} on Ascend."
        way = Way(f"set it to {wanted}", {"max-num-batched-tokens": wanted})
        yield Finding("error", sentence, (way,), SOURCE, "max-num-batched-tokens")


@rule(
    "ascend-scheduler",
    sources=(SOURCE,),
    example=Example(
        {"enable-chunked-prefill": True, ascend.CONFIG: {ascend.SCHEDULER: {ascend.ENABLED: True}}}, platform="ascend"
    ),
)
def scheduler(case: Case) -> Iterator[Finding]:
    """Ascend's own scheduler turns chunked prefill off.
    ascend_scheduler_config.enabled does so unless chunked_prefill_enabled is set with it; --enable-chunked-prefill is then ignored.
    """
    if case.asked.platform != "ascend" or not ascend.scheduler(case.asked.flags).get(ascend.ENABLED):
        return
    if case.flag("enable-chunked-prefill") is True and case.effective.chunked_prefill is False:
        change = ascend.with_scheduler(case.asked.flags, enabled=True, chunked=True)
        sentence = "ascend_scheduler_config.enabled turns chunked prefill off despite enable-chunked-prefill."
        way = Way("also set chunked_prefill_enabled", {ascend.CONFIG: change[ascend.CONFIG]})
        yield Finding("error", sentence, (way,), SOURCE, ascend.CONFIG)
