"""The format of vLLM's log, the parser of its config dump, and causes of slowness specific to vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkwright.engines.log import resolution
from sparkwright.engines.log.log_format import LogFormat, ResolutionRules
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import LinePattern, line_pattern, parse_count, parse_number
from sparkwright.engines.slowness import Cause, SlownessEvidence
from sparkwright.engines.vllm import flags, log_lines
from sparkwright.engines.vllm.failures import FAILURES, SECONDARY_ERROR_PATTERN
from sparkwright.engines.vllm.versions import at_least, parse

#: names of settings in the config dump, for flags that have another name. real, 0.32.0; chunked_prefill_enabled until 0.11.0 (source)
SETTING_NAMES: Mapping[str, tuple[str, ...]] = {
    "enable-chunked-prefill": ("enable_chunked_prefill", "chunked_prefill_enabled"),
    "max-model-len": ("max_seq_len",),
}
#: settings with paths, which may differ between starts and do not affect the server's behaviour
VOLATILE_SETTING_PATTERN = re.compile(r"'(?:\w+_)?(?:cache_dir|dump_path)': (?:'[^']*'|None),? ?")


def parse_settings_line(line: str) -> dict[str, str] | None:
    """Return the settings of a config dump by name; None for any other line."""
    match = log_lines.CONFIG_DUMP.match(line)
    return dict(resolution.parse_pairs(VOLATILE_SETTING_PATTERN.sub("", match.group("config")))) if match else None


# Kernels and backends in vLLM's log, and the comparison of flags with resolved settings.
#
# Sources: the log calls in the packages of 25 releases, 0.10 to 0.33; comments name the first and last release of each wording.
# real: in logs of 0.32.0 for the CPU, tests/data/vllm-0.32.0.

ATTENTION, MOE, LINEAR = "attention", "MoE", "linear"
_FORMAT_PATTERN = r"(?:Fp8|Int8|WNA16|Mxfp4|MxFp8|NvFp4|Unquantized|W4A8(?: Int8)?)"

KERNELS: tuple[tuple[str, LinePattern], ...] = (
    # 0.12 to 0.33; with the enumeration's name 0.11 to 0.33; other wording in 0.10
    (ATTENTION, line_pattern(" attention backend", r"Using (\w{1,60}) attention backend")),
    (ATTENTION, line_pattern("Using AttentionBackendEnum.", r"Using AttentionBackendEnum\.(\w{1,60}) backend")),
    (ATTENTION, line_pattern(" backend on V1 engine", r"Using ([\w ]{1,40}) backend on V1 engine")),
    ("MLA prefill", line_pattern(" MLA prefill backend", r"Using (\w{1,60}) MLA prefill backend")),  # 0.21 to 0.33
    # oracle/*.py, 0.15 to 0.33. real: CPU Unquantized
    (MOE, line_pattern(" MoE backend", rf"Using '?(\w{{1,60}})'? {_FORMAT_PATTERN} MoE backend")),
    # 0.14 to 0.19; several words in 0.11 to 0.13
    (MOE, line_pattern(" backend for ", r"Using ([\w ]{1,40}?) backend for (?:FP8|NvFp4|Unquantized) MoE")),
    # mxfp4.py, 0.10 to 0.18
    (MOE, line_pattern("Using ", r"Using (Marlin|Triton|FlashInfer MXFP4 [\w ]{1,30}?) backend(?: for SM\d|\s*$)")),
    (MOE, line_pattern(" for MXFP4 MoE", r"Using (\w{1,60}) for MXFP4 MoE")),  # 0.20 to 0.33
    # 0.20 to 0.33: weights are converted to 16 bits during the computation
    (MOE, line_pattern("EmulationTritonExperts", r"Using (\w{1,60}EmulationTritonExperts) M[Oo]E backend")),
    # kernels/linear/__init__.py 0.20 to 0.33; a backend's name 0.11 to 0.19
    (
        LINEAR,
        line_pattern(" GEMM", r"Using (?:\w{1,40}\.)?([\w-]{1,60}) (?:backend )?for (?:NVFP4|MXFP4|MXFP6|MXFP8) GEMM"),
    ),
    (LINEAR, line_pattern("LinearMethod", r"(?:Using|Selected) (\w{1,80}) for \w{1,60}LinearMethod")),  # 0.10 to 0.33
    (
        LINEAR,
        line_pattern(" for mixed-precision linear", r"Using (\w{1,80}) for mixed-precision linear"),
    ),  # 0.31 to 0.33
    # 0.20 to 0.33
    (LINEAR, line_pattern("NVFP4 linear falling back to the slow", r"slow and unoptimized (emulation) backend")),
    # 0.17 to 0.33. real: CPU
    ("GDN prefill", line_pattern(" GDN prefill kernel", r"Using ([\w/]{1,40}) GDN prefill kernel")),
    ("Mamba", line_pattern(" Mamba SSU backend", r"Using (\w{1,60}) Mamba SSU backend")),  # 0.20 to 0.33
)


#: readings that are reported together with the kernels: title and name
KERNEL_READINGS = (("CUDA graphs", "cudagraph_mode"), ("compile", "compile_mode"))

#: names of kernels that read quantized weights but compute in 16 bits, and their cost. Source of the cost: the warning in
#: marlin_utils_fp4.py ("may degrade performance for compute-heavy workloads")
WEIGHT_ONLY = (
    re.compile(r"marlin|humming|w4a16|emulation", re.IGNORECASE),
    "decoding is nearly as fast, but long prompts and many streams are slower",
)

#: real and source 0.32.0: fields of VllmConfig.__str__
RESOLUTION = ResolutionRules(
    readings={
        "enable-chunked-prefill": "chunked_prefill",
        "enable-prefix-caching": "prefix_caching",
        "kv-cache-dtype": "kv_cache_dtype",
        "max-model-len": "max_model_len",
        "quantization": "quantization",
    },
    negated_readings={"disable-chunked-prefill": "chunked_prefill"},  # 0.33.0
    kernels={"attention-backend": ATTENTION, "moe-backend": MOE},
    # names, paths, and values that the dump prints in another form
    ignored_flags=frozenset(
        (
            *("model", "tokenizer", "served-model-name", "download-dir", "load-format"),
            *("revision", "tokenizer-revision"),
            *("speculative-config", "kernel-config", "hf-token", "api-key"),
        )
    ),
    equivalent_values=(
        frozenset(("half", "float16")),
        frozenset(("float", "float32")),
        frozenset(("fp8", "fp8_e4m3", "fp8_ds_mla", "fp8_inc")),
        frozenset(("awq", "awq_marlin", "auto_awq")),
        frozenset(("gptq", "gptq_marlin", "auto_gptq")),
        frozenset(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8")),
        frozenset(("mxfp4", "gpt_oss_mxfp4")),
        frozenset(("auto-round", "inc")),
    ),
    ignored_name_parts=re.compile(r"^(?:BATCHED_)?(?:VLLM_)?"),
    value_parsers={"max-model-len": flags.parse_positive_integer},
)


def _normalize_cudagraph_mode(text: str) -> str:
    return log_lines.CUDAGRAPH_NUMBERS.get(re.sub(r", ?", ", ", text), text)


#: readings of memory sizes; see `log.state.gpu_memory_bytes`
MEMORY_READINGS = ("weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib")
VALUE_PARSERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("chunked_prefill", "prefix_caching"), lambda text: text == "True"),
    **dict.fromkeys(("block_size", "kv_cache_tokens", "max_model_len"), parse_count),
    **dict.fromkeys(("rank", "world_size", "intended_rank", "intended_world_size"), parse_count),
    **dict.fromkeys(("max_concurrency", "weights_s", "compile_s", "graphs_s", "init_s"), parse_number),
    **dict.fromkeys(MEMORY_READINGS, parse_number),
    "quantization": lambda text: "none" if text == "None" else text,
    "cudagraph_mode": _normalize_cudagraph_mode,
    "cuda_graphs": lambda text: _normalize_cudagraph_mode(text) != "NONE",
}


def _read_vllm_line(state: EngineState, line: str) -> bool:
    """Store the readings of a config dump or, unless an earlier line reported it, chunked prefill. Return True for a config dump."""
    dump = log_lines.CONFIG_DUMP.match(line)
    if dump:
        _read_config_dump(state, line, dump)
        return True
    if log_lines.CHUNKED_PREFILL_ON.match(line) and "chunked_prefill" not in state.readings:
        state.record("chunked_prefill", True, line)
    return False


def _read_config_dump(state: EngineState, line: str, dump: re.Match[str]) -> None:
    head = line[: dump.start("config")].strip()
    state.record("version", dump.group("version"), f"{head} ...")
    for name, pattern in log_lines.DUMP_FIELDS.items():
        match = pattern.search(dump.group("config"))
        if match:
            value = ("0" if match.groupdict().get("eager") else match.group(1)).strip("'")
            evidence = f"{head} ... {match.group().strip(',')}, ..."
            state.record(name, VALUE_PARSERS.get(name, str)(value), evidence)
            if name == "cudagraph_mode":
                state.record("cuda_graphs", VALUE_PARSERS["cuda_graphs"](value), evidence)


LOG = LogFormat(
    noise=log_lines.NOISE,
    banners=log_lines.BANNERS,
    arguments_line=log_lines.ARGUMENTS,
    refusals=(log_lines.USAGE,),
    later_refusals=(log_lines.ARGPARSE,),
    stages=log_lines.STAGES,
    shards_line=log_lines.SHARDS,
    reading_lines=(*log_lines.VALUES, *log_lines.MEMBER_VALUES),
    implied_readings=(*log_lines.IMPLIED_READINGS, *log_lines.MEMBER_IMPLIED_READINGS),
    kernels=KERNELS,
    kernel_readings=KERNEL_READINGS,
    weight_only=WEIGHT_ONLY,
    resolution=RESOLUTION,
    spans=(
        ("autotune_s", log_lines.AUTOTUNE_START, log_lines.AUTOTUNE_END),
        ("compile_s", log_lines.CPU_COMPILE_START, log_lines.CPU_COMPILE_END),
    ),
    value_parsers=VALUE_PARSERS,
    warnings=(*log_lines.WARNINGS, *log_lines.MEMBER_WARNINGS),
    failures=FAILURES,
    has_tracebacks=True,
    secondary_error_pattern=SECONDARY_ERROR_PATTERN,
    front_process="APIServer",
    suspects=(("speculation", log_lines.SPECULATION_SUSPECTED),),
    extra_readings=("speculation", "compile_mode", *MEMORY_READINGS),
    harmless_pattern=log_lines.HARMLESS_LINE_PATTERN,
    shutdown_lines=(log_lines.STOPPING,),
    shutdown_lines_when_ready=(log_lines.STOPPING_WHEN_READY,),
    prefix_pattern=log_lines.PREFIX_PATTERN,
    clock_pattern=log_lines.CLOCK_PATTERN,
    gpu_lines=log_lines.GPU_LINES,
    cpu_lines=log_lines.CPU_LINES,
    long_line_needle=log_lines.CONFIG_DUMP.needle,
    hook=_read_vllm_line,
    hook_lines=(log_lines.CONFIG_DUMP, log_lines.CHUNKED_PREFILL_ON),
    parse_settings=parse_settings_line,
    setting_names=SETTING_NAMES,
)


JIT_WARNING = "JIT compilation during inference"
#: in warnings of marlin_utils_fp4.py and marlin_utils_fp8.py
NO_NATIVE_SUPPORT_PATTERN = re.compile(r"native support for (FP\d+) computation")
#: formats for which a GB10 has native arithmetic; a weight-only kernel does not use it
QUANTIZED_FORMAT_PATTERN = re.compile(r"fp4|fp8|compressed-tensors|modelopt", re.IGNORECASE)
#: fused_moe.py: there is no file with tuned tile sizes for this GPU and these experts
UNTUNED_WARNING = "Using default MoE config"
#: first release of vllm/vllm-openai that is built with CUDA 13
FIRST_RELEASE_WITH_CUDA_13 = "0.20.0"


def detect_eager_mode(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "eager mode: no CUDA graphs"
    graphs, line = evidence.find_in_log("cuda_graphs")
    if graphs is False:
        yield Cause(name, "found", line, "remove enforce-eager from the recipe", weight=70)
    elif graphs is None:
        yield Cause(name, "unknown", "not in the log", weight=40)
    else:
        yield Cause(name, "excluded", line)


def detect_jit_compilation(evidence: SlownessEvidence) -> Iterator[Cause]:
    name = "kernels compile while requests wait"
    line = evidence.find_warning(JIT_WARNING)
    if line:
        yield Cause(name, "found", line, "send a request of each prompt length first, then measure again", weight=65)
    elif evidence.log is None:
        yield Cause(name, "unknown", "the log was not read", weight=30)
    else:
        yield Cause(name, "excluded", "no such warning in the log (engines before 0.21 do not warn)")


def detect_weight_only_kernel(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield a cause if the weights run on a weight-only kernel, which reads fewer bytes but computes in 16 bits."""
    line = evidence.find_warning("native support for FP")
    weight_format = NO_NATIVE_SUPPORT_PATTERN.search(line)
    kernels = (evidence.log or {}).get("kernels") or {}
    pattern, cost = WEIGHT_ONLY
    kernel_names = [name for kind in (MOE, LINEAR) for name in kernels.get(kind, ())]
    if (
        weight_format is None
        and kernel_names
        and all(map(pattern.search, kernel_names))
        and QUANTIZED_FORMAT_PATTERN.search(str(evidence.find_in_log("quantization")[0]))
    ):
        name = f"its quantized weights run on a weight-only kernel ({', '.join(kernel_names)}): {cost}"
        fix = "use another quantization of the model (FP8), or another moe-backend or linear-backend"
        yield Cause(name, "found", "named in the log", fix, weight=30)
    if weight_format:
        name = f"its {weight_format[1]} weights run on a weight-only kernel (Marlin): fewer bytes, no {weight_format[1]} arithmetic"
        fix = "decoding is nearly as fast, but prompts are slower; use another quantization of the model (FP8), or an image whose log names another kernel"
        yield Cause(name, "found", line, fix, weight=30)


def detect_untuned_experts(evidence: SlownessEvidence) -> Iterator[Cause]:
    line = evidence.find_warning(UNTUNED_WARNING)
    if line:
        fix = "mount a configuration tuned on a GB10 (VLLM_TUNED_CONFIG_FOLDER), or try another moe-backend"
        yield Cause("the kernel of its experts is not tuned for this GPU", "found", line, fix, weight=25)


def detect_missing_kernels(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield a possible cause unless the release in the log excludes it: an image with CUDA 12, which has no code for a GB10."""
    version, _ = evidence.find_in_log("version")
    has_cuda_13 = at_least(parse(str(version)), FIRST_RELEASE_WITH_CUDA_13) if version else None
    if evidence.share is not None and evidence.share < 0.4 and not has_cuda_13:
        fix = "use an image built with CUDA 13 (vllm/vllm-openai from v0.20.0, or NGC with `container.entrypoint: [vllm, serve]`)"
        observation = f"{evidence.share:.0%} of the expected rate; images built with CUDA 12 reached 28 %"
        yield Cause("an image without kernels for this GPU (sm_121)", "possible", observation, fix, weight=35)


def detect_stale_compile_cache(evidence: SlownessEvidence) -> Iterator[Cause]:
    if evidence.share is not None and evidence.share < 0.25:
        observation = f"{evidence.share:.0%} of the expected rate; a reported case reached 7-10 tok/s instead of 100 after a restart"
        fix = "run `invoke restart`, which clears it; if a volume of your own holds ~/.cache/vllm, remove that first"
        yield Cause("a stale compile cache", "possible", observation, fix, weight=25)


def detect_block_over_budget(evidence: SlownessEvidence) -> Iterator[Cause]:
    block, _ = evidence.find_in_log("block_size")
    if block is None or evidence.budget is None:
        return
    name = "a block of the KV cache is larger than max-num-batched-tokens"
    observation = f"block {block}, max-num-batched-tokens {evidence.budget}"
    if block > evidence.budget:
        observation = f"{observation}: long prompts are processed slowly; decoding is not affected"
        yield Cause(name, "found", observation, f"raise it to {block}", 30, lowers_rate=False)
    else:
        yield Cause(name, "excluded", observation)


def exclude_chunked_prefill(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield chunked prefill as an excluded cause: it is often blamed, but is on by default in every release that loads recurrent models."""
    setting, line = evidence.find_in_log("chunked_prefill")
    if setting is True:
        yield Cause("chunked prefill", "excluded", f"on, which is the default; the flag changes nothing. {line}")


DETECTORS = (
    detect_eager_mode,
    detect_jit_compilation,
    detect_weight_only_kernel,
    detect_untuned_experts,
    detect_missing_kernels,
    detect_stale_compile_cache,
    detect_block_over_budget,
    exclude_chunked_prefill,
)
