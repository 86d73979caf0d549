"""What makes vLLM slow and no other engine: read from its log, its flags and its rate. Pure. Sources: docs/measuring.md."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.slowness.cause import Cause, Seen

JIT = "JIT compilation during inference"
SLOW_KERNELS = ("Using default MoE config", "does not have native support for FP")


def eager(seen: Seen) -> Iterator[Cause]:
    name = "eager mode: no CUDA graphs"
    graphs, line = seen.in_log("cuda_graphs")
    if graphs is False:
        yield Cause(name, "found", line, "take enforce-eager out of the recipe", weight=70)
    elif graphs is None:
        yield Cause(name, "unknown", "its log does not say", weight=40)
    else:
        yield Cause(name, "excluded", line)


def still_compiling(seen: Seen) -> Iterator[Cause]:
    name = "kernels compile while requests wait"
    line = seen.warned(JIT)
    if line:
        yield Cause(name, "found", line, "send a request of each prompt length first, then measure again", weight=65)
    elif seen.log is None:
        yield Cause(name, "unknown", "its log was not read", weight=30)
    else:
        yield Cause(name, "excluded", "no such warning in its log (engines before 0.21 do not warn)")


def missing_kernels(seen: Seen) -> Iterator[Cause]:
    name = "an image without kernels for this GPU (sm_121)"
    line = seen.warned(*SLOW_KERNELS)
    fix = "take an image built with CUDA 13 (vllm/vllm-openai from v0.20.0, or NGC)"
    if line:
        yield Cause(name, "found", line, fix, weight=55)
    elif seen.share is not None and seen.share < 0.4:
        yield Cause(name, "possible", f"{seen.share:.0%} of what is expected; stock images gave 28 %", fix, weight=35)


def stale_compile_cache(seen: Seen) -> Iterator[Cause]:
    if seen.share is not None and seen.share < 0.25:
        message = f"{seen.share:.0%} of what is expected; one gave 7-10 tok/s of 100 after a restart"
        fix = "`invoke restart` starts once more without it; a volume of your own with ~/.cache/vllm: remove it first"
        yield Cause("a stale compile cache", "possible", message, fix, weight=25)


def block_over_budget(seen: Seen) -> Iterator[Cause]:
    block, _ = seen.in_log("block_size")
    if block is None or seen.budget is None:
        return
    name = "a block of the KV cache is larger than max-num-batched-tokens"
    message = f"block {block}, max-num-batched-tokens {seen.budget}"
    if block > seen.budget:
        message = f"{message}: long prompts crawl, decoding does not"
        yield Cause(name, "found", message, f"raise it to {block}", 30, of_rate=False)
    else:
        yield Cause(name, "excluded", message)


def flag_without_effect(seen: Seen) -> Iterator[Cause]:
    """Often blamed; it is on in every engine that can load a recurrent model, said or not."""
    effective, line = seen.in_log("chunked_prefill")
    if effective is True:
        yield Cause("chunked prefill", "excluded", f"on, as by default; the flag changes nothing. {line}")


DETECTORS = (eager, still_compiling, missing_kernels, stale_compile_cache, block_over_budget, flag_without_effect)
