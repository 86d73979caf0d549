"""Causes of slowness that only vLLM has, read from its log, its flags and its rate. Pure. Sources: docs/measuring.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkwright.engines.slowness import Cause, Seen
from sparkwright.engines.vllm import log
from sparkwright.engines.vllm.versions import at_least, parse

JIT = "JIT compilation during inference"
#: marlin_utils_fp4.py and marlin_utils_fp8.py: "Your GPU does not have native support for FP4 computation but ..."
WEIGHT_ONLY = re.compile(r"native support for (FP\d+) computation")
#: formats with native arithmetic on a GB10, which a 16-bit kernel wastes
QUANTIZED = re.compile(r"fp4|fp8|compressed-tensors|modelopt", re.IGNORECASE)
#: fused_moe.py: no file of measured tile sizes for this GPU and these experts
UNTUNED = "Using default MoE config"
#: the first image of vllm/vllm-openai that is built with CUDA 13
CUDA_13_SINCE = "0.20.0"


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


def weight_only_kernel(seen: Seen) -> Iterator[Cause]:
    """Yield the cause of a weight-only kernel: the weights are only stored in few bits, which saves memory traffic, not
    arithmetic."""
    line = seen.warned("native support for FP")
    kind = WEIGHT_ONLY.search(line)
    path = (seen.log or {}).get("kernels") or {}
    pattern, cost = log.WEIGHT_ONLY
    named = [name for kernels in (log.MOE, log.LINEAR) for name in path.get(kernels, ())]
    if (
        kind is None
        and named
        and all(map(pattern.search, named))
        and QUANTIZED.search(str(seen.in_log("quantization")[0]))
    ):
        name = f"its quantized weights run on a weight-only kernel ({', '.join(named)}): {cost}"
        fix = "another quantization of the model (FP8), or another moe-backend or linear-backend"
        yield Cause(name, "found", "named in its log", fix, weight=30)
    if kind:
        name = f"its {kind[1]} weights run on a weight-only kernel (Marlin): fewer bytes, no {kind[1]} arithmetic"
        fix = "decoding is nearly as fast, prompts are slower; another quantization of the model (FP8), or an image whose log names another kernel"
        yield Cause(name, "found", line, fix, weight=30)


def untuned_experts(seen: Seen) -> Iterator[Cause]:
    line = seen.warned(UNTUNED)
    if line:
        fix = "mount a configuration tuned on a GB10 (VLLM_TUNED_CONFIG_FOLDER), or try another moe-backend"
        yield Cause("the kernel of its experts is not tuned for this GPU", "found", line, fix, weight=25)


def missing_kernels(seen: Seen) -> Iterator[Cause]:
    """Yield the cause of an image with CUDA 12, which has no code for a GB10, unless the version in the log excludes it."""
    version, _ = seen.in_log("version")
    built_with_13 = at_least(parse(str(version)), CUDA_13_SINCE) if version else None
    if seen.share is not None and seen.share < 0.4 and not built_with_13:
        fix = "take an image built with CUDA 13 (vllm/vllm-openai from v0.20.0, or NGC)"
        message = f"{seen.share:.0%} of what is expected; images built with CUDA 12 gave 28 %"
        yield Cause("an image without kernels for this GPU (sm_121)", "possible", message, fix, weight=35)


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
    """Yield chunked prefill as excluded. It is often blamed, but on in every engine that can load a recurrent model, with or
    without the flag."""
    effective, line = seen.in_log("chunked_prefill")
    if effective is True:
        yield Cause("chunked prefill", "excluded", f"on, as by default; the flag changes nothing. {line}")


DETECTORS = (
    eager,
    still_compiling,
    weight_only_kernel,
    untuned_experts,
    missing_kernels,
    stale_compile_cache,
    block_over_budget,
    flag_without_effect,
)
