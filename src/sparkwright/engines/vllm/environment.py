"""Environment variables that vLLM reads, by release, and the flags that replaced removed ones.

Source: `environment_variables` in vllm/envs.py of the releases in releases.json. From 0.17 on the
engine logs "Unknown vLLM environment variable detected"; before, such a variable silently has no effect.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from sparkwright.engines.vllm import releases
from sparkwright.engines.vllm.versions import at_least, within

PREFIX = "VLLM_"
#: set by images, but not read by vLLM
IMAGE_VARIABLES = frozenset({"VERSION", "BUILD_COMMIT", "BUILD_PIPELINE", "BUILD_URL", "IMAGE_TAG"})
#: the first release whose variables are not all known
FIRST_UNKNOWN_RELEASE = "0.34.0"


@dataclass(frozen=True, slots=True)
class UnreadVariable:
    """A variable that a release does not read."""

    name: str
    why: str  # half a sentence
    certain: bool
    instead: str = ""  # the replacement, a flag as "attention-backend" or another variable


#: flags that replaced variables, by name without VLLM_.
#: Sources: the help of 0.33.0, and the removals of 0.15.0, 0.16.0, 0.24.0 and 0.31.0
SUCCESSOR_FLAGS = {
    name: flag
    for flag, names in {
        "attention-backend": "ATTENTION_BACKEND",
        "all2all-backend": "ALL2ALL_BACKEND",
        "disable-nccl-for-dp-synchronization": "DISABLE_NCCL_FOR_DP_SYNCHRONIZATION",
        "moe-backend": """
            FLASHINFER_MOE_BACKEND MXFP4_USE_MARLIN USE_FLASHINFER_MOE_FP16 USE_FLASHINFER_MOE_FP4 USE_FLASHINFER_MOE_FP8
            USE_FLASHINFER_MOE_MXFP4_BF16 USE_FLASHINFER_MOE_MXFP4_MXFP8 USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS
        """,
        "linear-backend": "NVFP4_GEMM_BACKEND TEST_FORCE_FP8_MARLIN USE_FBGEMM",
        "attention-config": """
            DISABLE_FLASHINFER_PREFILL FLASHINFER_DISABLE_Q_QUANTIZATION FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH
            FLASH_ATTN_VERSION USE_CUDNN_PREFILL USE_TRTLLM_ATTENTION USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL
            V1_USE_PREFILL_DECODE_ATTENTION
        """,
        "profiler-config": """
            PROFILER_DELAY_ITERS PROFILER_MAX_ITERS TORCH_CUDA_PROFILE TORCH_PROFILER_DIR TORCH_PROFILER_DISABLE_ASYNC_LLM
            TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL TORCH_PROFILER_RECORD_SHAPES TORCH_PROFILER_USE_GZIP
            TORCH_PROFILER_WITH_FLOPS TORCH_PROFILER_WITH_PROFILE_MEMORY TORCH_PROFILER_WITH_STACK
        """,
    }.items()
    for name in names.split()
}


@cache
def variable_histories() -> dict[str, tuple[str, str]]:
    """Return by name without VLLM_ the first release that reads a variable ("" for the oldest that was read, or before), and the
    first that no longer does ("" if the newest does)."""
    newest = len(releases.release_names()) - 1
    return {
        name.removeprefix(PREFIX): _release_bounds(runs[0][0], runs[-1][1], newest)
        for name, runs in releases.release_runs("variables").items()
    }


def _release_bounds(first: int, last: int, newest: int) -> tuple[str, str]:
    since = releases.find_introduction(first) if first else ""
    return since, releases.find_introduction(last + 1) if last < newest else ""


def find_unread(name: str, version: Version | None) -> UnreadVariable | None:
    """Return why a release does not read a variable; None if it does, or the variable is not vLLM's.

    Args:
        name: the variable, as in the recipe.
        version: of the engine; None while it is not known, and then nothing is certain.
    """
    if not name.startswith(PREFIX):
        return None
    short = name.removeprefix(PREFIX)
    if short in IMAGE_VARIABLES:
        return None
    history = variable_histories().get(short)
    engine = f"vLLM {version}" if version else "vLLM 0.33.0"
    if history is None:
        similar = difflib.get_close_matches(short, variable_histories(), 1, 0.85)
        is_certain = at_least(version, FIRST_UNKNOWN_RELEASE) is False
        return UnreadVariable(
            name, f"{engine} reads no such variable", is_certain, f"{PREFIX}{similar[0]}" if similar else ""
        )
    since, removed = history
    if within(version, since, removed) or (version is None and not removed):
        return None
    replacement = SUCCESSOR_FLAGS.get(short, "")
    if removed and at_least(version, removed) is not False:
        return UnreadVariable(name, f"it is read by no vLLM from {removed} on", version is not None, replacement)
    return UnreadVariable(name, f"it is read by vLLM {since} and newer, not by {version}", True)
