"""Environment variables of vLLM by release, and the flags that replaced removed ones.

Source: `environment_variables` in vllm/envs.py of the releases in releases.json. For an unknown variable the engine logs "Unknown
vLLM environment variable detected" from 0.17 on; older releases silently ignore it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache

from packaging.version import Version

from sparkwright.engines.vllm import releases
from sparkwright.engines.vllm.versions import at_least, within

VARIABLE_PREFIX = "VLLM_"
#: set by images, but not read by vLLM
IMAGE_VARIABLES = frozenset({"VERSION", "BUILD_COMMIT", "BUILD_PIPELINE", "BUILD_URL", "IMAGE_TAG"})


@dataclass(frozen=True, slots=True)
class UnreadVariable:
    """A variable that a release does not read."""

    name: str
    reason: str  # clause, such as "vLLM 0.32.0 reads no such variable"
    is_certain: bool
    replacement: str = ""  # a flag without leading dashes, or another variable; "" if unknown


#: flags that replaced variables, by the variable's name without VLLM_.
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
    """Return the first release with each variable and the first one after its removal, by the name without VLLM_.

    The first is "" if the oldest release in the tables has the variable, the second is "" if the newest release has it.
    """
    newest = len(releases.release_names()) - 1
    histories = {}
    for name, runs in releases.release_runs("variables").items():
        first, last = runs[0][0], runs[-1][1]
        since = releases.find_introduction(first) if first else ""
        removed_in = releases.find_introduction(last + 1) if last < newest else ""
        histories[name.removeprefix(VARIABLE_PREFIX)] = (since, removed_in)
    return histories


def find_unread_variable(name: str, version: Version | None) -> UnreadVariable | None:
    """Return a variable that the release does not read; None if the release reads it, or it is not a variable of vLLM.

    version: the engine's version. If it is None (unknown), a removed variable is reported as uncertain.
    """
    if not name.startswith(VARIABLE_PREFIX):
        return None
    short_name = name.removeprefix(VARIABLE_PREFIX)
    if short_name in IMAGE_VARIABLES:
        return None
    history = variable_histories().get(short_name)
    engine = f"vLLM {version or releases.release_names()[-1]}"
    if history is None:
        similar = difflib.get_close_matches(short_name, variable_histories(), 1, 0.85)
        is_certain = at_least(version, releases.FIRST_RELEASE_AFTER_TABLES) is False
        return UnreadVariable(
            name, f"{engine} reads no such variable", is_certain, f"{VARIABLE_PREFIX}{similar[0]}" if similar else ""
        )
    since, removed_in = history
    if within(version, since, removed_in) or (version is None and not removed_in):
        return None
    replacement = SUCCESSOR_FLAGS.get(short_name, "")
    if removed_in and at_least(version, removed_in) is not False:
        return UnreadVariable(name, f"vLLM does not read it from {removed_in} on", version is not None, replacement)
    return UnreadVariable(name, f"vLLM reads it from {since} on, not in {version}", True)
