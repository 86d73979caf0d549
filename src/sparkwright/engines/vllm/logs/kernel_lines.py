"""The kernels and backends that vLLM names in its log, and the settings to compare its flags with.

Sources: the log calls of 25 releases, 0.10 to 0.33, read from their packages; with the first and the last release that has each
wording. real: in logs of 0.32.0 for the CPU, tests/data/vllm-0.32.0.
"""

from __future__ import annotations

import re
from typing import Any

from sparkwright.engines.log.line import Line, line
from sparkwright.engines.log.resolution import Resolution
from sparkwright.engines.vllm.flags import flags

ATTENTION, MOE, LINEAR = "attention", "MoE", "linear"
_FORMATS = r"(?:Fp8|Int8|WNA16|Mxfp4|MxFp8|NvFp4|Unquantized|W4A8(?: Int8)?)"

KERNELS: tuple[tuple[str, Line], ...] = (
    # 0.12 to 0.33; the enumeration's own text 0.11 to 0.33; words of 0.10
    (ATTENTION, line(" attention backend", r"Using (\w{1,60}) attention backend")),
    (ATTENTION, line("Using AttentionBackendEnum.", r"Using AttentionBackendEnum\.(\w{1,60}) backend")),
    (ATTENTION, line(" backend on V1 engine", r"Using ([\w ]{1,40}) backend on V1 engine")),
    ("MLA prefill", line(" MLA prefill backend", r"Using (\w{1,60}) MLA prefill backend")),  # 0.21 to 0.33
    # oracle/*.py, 0.15 to 0.33. real: CPU Unquantized
    (MOE, line(" MoE backend", rf"Using '?(\w{{1,60}})'? {_FORMATS} MoE backend")),
    # 0.14 to 0.19; 0.11 to 0.13 in words
    (MOE, line(" backend for ", r"Using ([\w ]{1,40}?) backend for (?:FP8|NvFp4|Unquantized) MoE")),
    # mxfp4.py, 0.10 to 0.18
    (MOE, line("Using ", r"Using (Marlin|Triton|FlashInfer MXFP4 [\w ]{1,30}?) backend(?: for SM\d|\s*$)")),
    (MOE, line(" for MXFP4 MoE", r"Using (\w{1,60}) for MXFP4 MoE")),  # 0.20 to 0.33
    # 0.20 to 0.33: weights are widened to 16 bits while it computes
    (MOE, line("EmulationTritonExperts", r"Using (\w{1,60}EmulationTritonExperts) M[Oo]E backend")),
    # kernels/linear/__init__.py 0.20 to 0.33; a backend's name 0.11 to 0.19
    (LINEAR, line(" GEMM", r"Using (?:\w{1,40}\.)?([\w-]{1,60}) (?:backend )?for (?:NVFP4|MXFP4|MXFP6|MXFP8) GEMM")),
    (LINEAR, line("LinearMethod", r"(?:Using|Selected) (\w{1,80}) for \w{1,60}LinearMethod")),  # 0.10 to 0.33
    (LINEAR, line(" for mixed-precision linear", r"Using (\w{1,80}) for mixed-precision linear")),  # 0.31 to 0.33
    (
        LINEAR,
        line("NVFP4 linear falling back to the slow", r"slow and unoptimized (emulation) backend"),
    ),  # 0.20 to 0.33
    # 0.17 to 0.33. real: CPU
    ("GDN prefill", line(" GDN prefill kernel", r"Using ([\w/]{1,40}) GDN prefill kernel")),
    ("Mamba", line(" Mamba SSU backend", r"Using (\w{1,60}) Mamba SSU backend")),  # 0.20 to 0.33
)


def _size(given: Any) -> int | None:
    """Return a number of tokens as vLLM reads it: "128k", or "auto", which is None."""
    return flags.integer(given)


#: readings that are part of the kernel path, from the config dump and the lines after it
KERNEL_READINGS = (("CUDA graphs", "cudagraph_mode"), ("compile", "compile_mode"))

#: sources of the cost: marlin_utils_fp4.py's own warning ("may degrade performance for compute-heavy workloads")
WEIGHT_ONLY = (
    re.compile(r"marlin|humming|w4a16|emulation", re.IGNORECASE),
    "decoding is nearly as fast, long prompts and many streams are slower",
)

#: real and source 0.32.0: fields of VllmConfig.__str__
RESOLUTION = Resolution(
    readings={
        "enable-chunked-prefill": "chunked_prefill",
        "enable-prefix-caching": "prefix_caching",
        "kv-cache-dtype": "kv_cache_dtype",
        "max-model-len": "max_model_len",
        "quantization": "quantization",
    },
    turns_off={"disable-chunked-prefill": "chunked_prefill"},  # 0.33.0
    kernels={"attention-backend": ATTENTION, "moe-backend": MOE},
    # names, paths, and values that the dump shows in another form
    ignored=frozenset(
        (
            *(
                "model",
                "tokenizer",
                "served-model-name",
                "download-dir",
                "load-format",
                "revision",
                "tokenizer-revision",
            ),
            *("speculative-config", "kernel-config", "hf-token", "api-key"),
        )
    ),
    same=(
        frozenset(("half", "float16")),
        frozenset(("float", "float32")),
        frozenset(("fp8", "fp8_e4m3", "fp8_ds_mla", "fp8_inc")),
        frozenset(("awq", "awq_marlin", "auto_awq")),
        frozenset(("gptq", "gptq_marlin", "auto_gptq")),
        frozenset(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8")),
        frozenset(("mxfp4", "gpt_oss_mxfp4")),
        frozenset(("auto-round", "inc")),
    ),
    trimmed=re.compile(r"^(?:BATCHED_)?(?:VLLM_)?"),
    values={"max-model-len": _size},
)
