"""llama-server's log: failure patterns, the format for the reader, and causes of slowness specific to llama.cpp.

Rows marked "real" are from logs in tests/data: CPU builds b10068 and b11549, and b10434 up to its first computation. Rows
marked "source" are from llama.cpp's source. Most lines of a start appear only with `-lv 4`; without it their readings are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sparkwright.engines.log.failure_collector import FailurePattern, failure_pattern
from sparkwright.engines.log.log_format import LogFormat, ResolutionRules
from sparkwright.engines.log.machine_failures import CRASH_FAILURES, HOST_FAILURES, IMAGE_FAILURES
from sparkwright.engines.log.text import LinePattern, line_pattern, parse_count, parse_number
from sparkwright.engines.slowness import Cause, SlownessEvidence

OUT_OF_MEMORY = "it ran out of memory: a buffer of {0} MiB could not be allocated."

FAILURES: tuple[FailurePattern, ...] = (
    # the command line
    failure_pattern("error: invalid argument: ", r"^error: invalid argument: (\S+)", "unknown argument: {0}."),
    failure_pattern(
        "Unsupported cache type: ",
        r"^error while handling argument \"([^\"]+)\": Unsupported cache type: (\S*)",
        "the engine does not accept {1} for {0}.",
    ),
    failure_pattern(
        "expected value for argument",
        r"^error while handling argument \"([^\"]+)\": expected value",
        "{0} needs a value.",
    ),
    failure_pattern(": stoi", r"^error while handling argument \"([^\"]+)\": stoi", "{0} takes a number."),
    failure_pattern(
        "failed to open file '",
        r"^error while handling argument \"([^\"]+)\": .{0,40}?failed to open file '([^']+)'",
        "{0}: it cannot open {1}.",
    ),
    failure_pattern(
        "error while handling argument ",
        r"^error while handling argument \"([^\"]+)\": (.+?)\.?$",
        "the engine refuses {0}: {1}.",
    ),
    failure_pattern(
        "error: the supplied chat template is not supported", "", "it does not support the template in chat-template."
    ),
    # mutually exclusive settings; the first two are messages of different builds
    *(
        failure_pattern(needle, "", "a quantized V cache (cache-type-v) needs flash-attn, which is off.", "never")
        for needle in ("V cache quantization requires flash_attn", "quantized V cache requires flash_attn")
    ),
    failure_pattern(
        "n_seq_max must be <= ",
        r"n_seq_max must be <= (\d+)",
        "parallel is more than the maximum of {0} slots.",
        "never",
    ),
    # the model's files
    failure_pattern(
        "failed to open GGUF file '",
        r"failed to open GGUF file '([^']{1,500})' \(([^)]{1,100})\)",
        "it cannot open {0} in the container: {1}.",
        "never",
    ),
    failure_pattern(
        "data is not within the file bounds",
        "",
        "the model's file is truncated: a tensor lies beyond its end.",
        "never",
    ),
    failure_pattern(
        "unknown model architecture: '",
        r"unknown model architecture: '([^']+)'",
        "this engine cannot load {0}.",
        "never",
    ),
    failure_pattern(
        "unknown pre-tokenizer type: '",
        r"unknown pre-tokenizer type: '([^']+)'",
        "this engine is too old for the model's tokenizer ({0}).",
        "never",
    ),
    failure_pattern("invalid magic characters", "", "the model's file is not a GGUF file.", "never"),
    failure_pattern("failed to read magic", "", "the model is a folder or an empty file, not a GGUF file.", "never"),
    failure_pattern(
        "gguf_init_from_reader: failed to read ",
        r"gguf_init_from_reader: failed to read (.+?)\.?$",
        "the model's file is truncated or damaged: its {0} cannot be read.",
        "never",
    ),
    # memory; CUDA's messages are from the source
    failure_pattern(
        "cudaMalloc failed: out of memory",
        r"allocating ([\d.]+) MiB on device",
        "the GPU ran out of memory: a buffer of {0} MiB could not be allocated.",
        "never",
    ),
    failure_pattern(
        "insufficient memory (attempted to allocate ", r"attempted to allocate ([\d.]+) MB", OUT_OF_MEMORY, "never"
    ),
    failure_pattern("failed to allocate buffer for kv cache", "", "there is no memory for its KV cache.", "never"),
    failure_pattern(
        "failed to allocate compute pp buffers", "", "there is no memory for its compute buffers.", "never"
    ),
    # the machine and the image; all except the port are from the source
    failure_pattern(
        "couldn't bind HTTP server socket",
        r"hostname: (\S+), port: (\d+)",
        "it cannot listen on {0}, port {1}: the port is in use, or the container does not have this address.",
    ),
    *HOST_FAILURES,
    *IMAGE_FAILURES,
    failure_pattern(
        "error while loading shared libraries: ",
        r"error while loading shared libraries: ([^:]+):",
        "the image lacks {0}.",
    ),
    failure_pattern("CUDA error: ", r"CUDA error: (.+?)\.?$", "CUDA failed: {0}.", "always"),
    failure_pattern(
        "GGML_ASSERT(", r"GGML_ASSERT\((.{1,300}?)\) failed", "an assertion of the engine failed: {0}.", "always"
    ),
    failure_pattern(  # issue 24324
        ": fatal error",
        r"(?:^|/)([\w.-]{1,80}\.(?:cu|cuh|c|cpp):\d{1,6}): fatal error$",
        "it ended with a fatal error ({0}).",
        "always",
    ),
    # consequences of other failures
    failure_pattern(
        "error loading model: ",
        r"error loading model: (?!llama_model_loader: failed to load)(.+?)\.?$",
        "it cannot load the model: {0}.",
        "never",
    ),
    failure_pattern(
        "failed to initialize the context: ",
        r"failed to initialize the context: (.+?)\.?$",
        "it cannot create its context: {0}.",
        "never",
    ),
    failure_pattern(
        "failed to load draft model, '", r"failed to load draft model, '([^']+)'", "it cannot load its draft model {0}."
    ),
    failure_pattern(
        "failed to load multimodal model, '",
        r"failed to load multimodal model, '([^']+)'",
        "it cannot load {0} (mmproj).",
    ),
    failure_pattern(
        "failed to load model, '", r"load_model: failed to load model, '([^']+)'", "it cannot load the model {0}."
    ),
    failure_pattern("failed to create context with model '", "", "it cannot create its context."),
    failure_pattern("failed to create_context with model '", "", "it cannot create its context."),
    failure_pattern("exiting due to ", r"(?:llama_server|init|main): exiting due to (.+?)\.?$", "it ended: {0}."),
    *CRASH_FAILURES,
)


#: time since the process started, as minutes.seconds.ms.us; a letter for the level follows. Errors about arguments have no prefix
_PREFIX_PATTERN = r"^\d{1,6}\.\d\d\.\d{3}\.\d{3} "

#: name of the function that logs the server's events: the first up to b10434, the second in b11549. real
_LOGGER_PATTERN = r"(?:llama_server|init): "

#: the build, only with -lv 4. real
BUILD = line_pattern("common_params_print_info: build ", r"print_info: build (\d+ \(\w+\))")
#: the build in b11549
BUILD_INFO = line_pattern("init: build_info: ", r"init: build_info: (b\d+-\S+)")
VERBOSITY = line_pattern("common_params_print_info: verbosity = ")
#: printed before any other line. real
ARGUMENT_ERRORS = (
    line_pattern("error: invalid argument: ", r"^error: invalid argument: "),
    line_pattern("error while handling argument ", r"^error while handling argument "),
)
SLOTS = line_pattern("load_model: initializing, n_slots = ", r"initializing, n_slots = (\d+)")
#: the address follows. real
LISTENING = line_pattern(": listening on ", _LOGGER_PATTERN + "listening on ")
#: device of a GPU buffer; `CUDA_Host` buffers are in the host's memory
_GPU_DEVICE_PATTERN = r"(?:CUDA|Vulkan|ROCm)\d+ "
#: one line per cache: a model with sliding windows has two, and a draft model adds one. real
KV_CACHE = line_pattern("llama_kv_cache: size = ", r"llama_kv_cache: size = +([\d.]+) MiB")
CONTEXT_CAPPED = line_pattern(
    "exceeds the training context of the model", r"the slot context \(\d+\) exceeds the training context of the model"
)
#: `fit` reduced a context that no flag sets, to leave memory free. source; only with -lv 4
CONTEXT_REDUCED = line_pattern("context size reduced from ", r"context size reduced from \d{1,12} to \d{1,12}")


def _format_build(text: str) -> str:
    """Return the build in the format of /props: b10434-7e4c0a9."""
    return text if text.startswith("b") else "b" + text.replace(" (", "-").rstrip(")")


def _merge_cache_types(text: str) -> str:
    """Return the common type of keys and values, else "K f16, V q8_0"."""
    keys, values = re.findall(r"[KV] \((\w+)\)", text)
    return keys if keys == values else f"K {keys}, V {values}"


STAGES: tuple[tuple[str, tuple[LinePattern, ...]], ...] = (
    ("arguments", (VERBOSITY,)),
    ("model", (line_pattern("load_model: loading model '"),)),
    ("weights", (line_pattern("load_tensors: loading model tensors"),)),
    ("context", (line_pattern("llama_context: constructing llama_context"),)),
    ("kv cache", (KV_CACHE,)),
    ("warm-up", (line_pattern("common_init_: warming up the model"),)),
    ("slots", (SLOTS,)),
    ("server", (line_pattern(": model loaded", _LOGGER_PATTERN + "model loaded"),)),
    ("ready", (LISTENING,)),
)

#: readings and their lines; later lines override earlier ones. real; only with -lv 4, except the line about slots
VALUES: tuple[tuple[str, LinePattern], ...] = (
    ("version", BUILD),
    ("version", BUILD_INFO),
    ("architecture", line_pattern("print_info: arch  ", r"print_info: arch +=\s*(\S+)")),
    (
        "quantization",
        line_pattern("print_info: file type ", r"print_info: file type +=\s*(\S{1,40}(?: [\w()-]{1,20}){0,4})"),
    ),
    ("kv_cache_tokens", line_pattern("llama_context: n_ctx  ", r"llama_context: n_ctx +=\s*(\d+)")),
    ("flash_attention", line_pattern("llama_context: flash_attn ", r"llama_context: flash_attn +=\s*(\w+)")),
    ("kv_cache_mib", KV_CACHE),
    ("kv_cache_dtype", line_pattern(KV_CACHE.needle, r"(K \(\w+\):.{0,40}?, V \(\w+\))")),
    # does not prove that a GPU is used: also printed without one. real
    ("gpu_layers", line_pattern("load_tensors: offloaded ", r"offloaded (\d{1,5}/\d{1,5}) layers to GPU")),
    (
        "cpu_weights_mib",
        line_pattern("CPU_Mapped model buffer size = ", r"CPU_Mapped model buffer size = +([\d.]+) MiB"),
    ),
    (
        "gpu_weights_mib",
        line_pattern(" model buffer size = ", _GPU_DEVICE_PATTERN + r"model buffer size = +([\d.]+) MiB"),
    ),
    # real for a CPU; observed for a GPU, b8467 to b11549
    (
        "gpu_compute_mib",
        line_pattern(" compute buffer size = ", _GPU_DEVICE_PATTERN + r"compute buffer size = +([\d.]+) MiB"),
    ),
    ("recurrent_mib", line_pattern("llama_memory_recurrent: size = ", r"llama_memory_recurrent: size = +([\d.]+) MiB")),
    ("slots", SLOTS),
    ("max_model_len", line_pattern(SLOTS.needle, r"n_ctx_slot = (\d+)")),
    ("kv_unified", line_pattern(SLOTS.needle, r"kv_unified = '(true|false)'")),
)


#: readings that are the sum of the values in several lines
SIZE_READINGS = ("kv_cache_mib", "recurrent_mib", "cpu_weights_mib", "gpu_weights_mib", "gpu_compute_mib")


def _normalize_flash_attention(value: Any) -> Any:
    """Return the log's word for a value of flash-attn: "enabled" or "disabled"; other values, such as "auto", are unchanged."""
    return {"on": "enabled", "1": "enabled", "off": "disabled", "0": "disabled"}.get(str(value).casefold(), value)


LOG = LogFormat(
    # the model's answers, which may quote exceptions, and lines that are printed for each request
    noise=("unparsed ", "got exception: ", "print_timing: "),
    banners=(BUILD, BUILD_INFO),
    arguments_line=VERBOSITY,
    later_refusals=ARGUMENT_ERRORS,
    stages=STAGES,
    reading_lines=VALUES,
    # later lines resolve "flash_attn = auto". real
    kernel_readings=(
        ("flash attention", "flash_attention"),
        ("GPU layers", "gpu_layers"),
        ("KV cache", "kv_cache_dtype"),
    ),
    resolution=ResolutionRules(
        readings={"flash-attn": "flash_attention", "parallel": "slots"},
        value_parsers={"flash-attn": _normalize_flash_attention},
    ),
    implied_readings=(
        ("flash_attention", line_pattern("resolve_fused_ops: Flash Attention enabled"), "enabled"),
        ("flash_attention", line_pattern("resolve_fused_ops: Flash Attention was auto, set to disabled"), "disabled"),
    ),
    value_parsers={
        "version": _format_build,
        "kv_cache_dtype": _merge_cache_types,
        "gpu_layers": lambda text: text.replace("/", " of "),
        **dict.fromkeys(SIZE_READINGS, parse_number),
        "kv_unified": lambda text: text == "true",
        **dict.fromkeys(("slots", "max_model_len", "kv_cache_tokens"), parse_count),
    },
    summed_readings=frozenset(SIZE_READINGS),
    extra_readings=("slots", "kv_unified", "flash_attention", "gpu_layers", *SIZE_READINGS),
    constant_readings={
        "chunked_prefill": (
            True,
            "llama-server always processes prompts in batches (-b, -ub); no flag turns that off",
        )
    },
    unavailable_features=(CONTEXT_CAPPED,),
    warnings=(
        CONTEXT_REDUCED,
        line_pattern("possible training context overflow"),
        line_pattern("failed to fit params to free device memory"),
        line_pattern("no usable GPU found"),  # source
        line_pattern("CORS is set to allow all origins"),
        line_pattern("CORS allows all origins"),
    ),
    failures=FAILURES,
    harmless_pattern=re.compile(_PREFIX_PATTERN + "[DIWT] "),
    # after SIGTERM; a failed start prints it after the reason
    shutdown_lines_when_ready=(line_pattern("cleaning up before exit..."),),
    prefix_pattern=re.compile(_PREFIX_PATTERN + r"[DIWET] (?:\w{3,4} )? *"),
    clock_pattern=re.compile(r"^(?P<minute>\d{1,6})\.(?P<second>\d\d)\.(?P<milli>\d{3})\.\d{3} "),
    gpu_lines=(
        line_pattern(
            " model buffer size = ", r"load_tensors: +(?:CUDA|Vulkan|ROCm)\d+ model buffer size = +[\d.]+ MiB"
        ),
    ),
    cpu_lines=(
        line_pattern("CPU_Mapped model buffer size = ", r"load_tensors: +CPU_Mapped model buffer size = +[\d.]+ MiB"),
    ),
)


# Causes of slowness specific to llama.cpp, from its log.
#
# Sources: llama.cpp b11549, llama-model.cpp ("offloaded N/M layers to GPU", the size of each buffer) and llama-kv-cache.cpp (types
# of K and V). Without flash attention, or with different types of K and V, CUDA uses slower attention kernels.


def detect_layers_on_cpu(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield the cause "layers on the CPU", found or excluded. n-gpu-layers or `fit` may assign layers to the CPU."""
    offloaded, line = evidence.find_in_log("gpu_layers")
    if not offloaded:
        return
    on_gpu, layers = (int(number) for number in str(offloaded).split(" of "))
    if on_gpu >= layers:
        yield Cause("layers on the CPU", "excluded", line)
        return
    sizes = [evidence.find_in_log(name)[0] for name in ("cpu_weights_mib", "gpu_weights_mib")]
    share = ""
    if all(sizes):
        cpu_gib, gpu_gib = (float(size) / 1024 for size in sizes)
        share = f"; {cpu_gib:.1f} of {cpu_gib + gpu_gib:.1f} GiB of its weights"
    name = f"{layers - on_gpu} of {layers} layers are on the CPU"
    yield Cause(name, "found", f"{line}{share}", "n-gpu-layers: all", weight=130)


def detect_flash_attention_off(evidence: SlownessEvidence) -> Iterator[Cause]:
    state, line = evidence.find_in_log("flash_attention")
    if state == "disabled":
        yield Cause("flash attention is off", "found", line, "flash-attn: true", weight=35)


def detect_mixed_cache_types(evidence: SlownessEvidence) -> Iterator[Cause]:
    """Yield the cause "different types of K and V": by default CUDA's flash attention is built only for equal types
    (GGML_CUDA_FA_ALL_QUANTS)."""
    types, line = evidence.find_in_log("kv_cache_dtype")
    if types and "," in str(types):
        fix = "the same type for cache-type-k and cache-type-v"
        yield Cause("its K and V caches have different types", "found", line, fix, weight=45)


DETECTORS = (detect_layers_on_cpu, detect_flash_attention_off, detect_mixed_cache_types)
