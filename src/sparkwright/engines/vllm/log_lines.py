"""Lines of vLLM's log, with the releases that print them.

real: in a log of vLLM 0.32.0 in tests/data. source: in vLLM's source of these releases. reported: in logs from GB10 users.
Prefixes such as "(EngineCore pid=16) INFO 11-21 00:07:43 [core.py:133]" change with every release and are never matched.
"""

from __future__ import annotations

import re

from sparkwright.engines.log.text import LinePattern, line_pattern

#: frequent, uninformative lines: access lines (uvicorn), statistics every 10 s, requests with users' prompts (source 0.9 to 0.33)
NOISE = (" HTTP/1.", "throughput: ", "Received request ")

# -- beginning of a start: `docker logs` contains all restarts -------------------------------------------------------------

#: the version, in the logo (real; >= 0.15) or in a separate line (<= 0.14, or without logo; source)
BANNERS = (
    line_pattern(" version ", r"[█▀▄\ufffd]\s+version v?(\d+\.\d+\.\d+\S*?),?(?:\s|$)"),
    line_pattern("LLM API server version ", r"LLM API server version v?(\d+\.\d+\.\d+\S*?),?(?:\s|$)"),
    line_pattern("LLM server version ", r"LLM server version v?(\d+\.\d+\.\d+\S*?),?(?:\s|$)"),
    # from a cluster's worker, which does not print its arguments. real; source 0.17.1 to 0.33
    line_pattern("Launching vLLM ", r"Launching vLLM \(v([^)\s]{1,100})\) headless multiproc executor"),
)
#: the arguments, after the banner. real; 0.9 to 0.33
ARGUMENTS = line_pattern("non-default args: {")
#: first line of a process that refuses its arguments. real
USAGE = line_pattern("usage: vllm ", r"^usage: vllm ")
#: an error about arguments in a log without its beginning; a running server never prints this line
ARGPARSE = line_pattern("error: ", r"^vllm(?: serve)?: error: ")

# -- lines that contain a value and also begin a stage -----------------------------------------------------------------------------

KV_CACHE_SIZE = line_pattern("KV cache size: ", r"KV cache size: ([\d,]+) tokens")
WEIGHTS_DURATION = line_pattern("Loading weights took ", r"Loading weights took ([\d.]+) s")
# source 0.9 to 0.33: "takes" until 0.12 or so
COMPILE_DURATION = line_pattern("torch.compile t", r"torch\.compile (?:takes|took) ([\d.]+) s")
#: v1/worker/gpu_worker.py: the memory in use after graphs were captured. source 0.32.0; "for weight" and "for non-torch memory": 0.10
#: to 0.30
ACTUAL_USAGE_NEEDLE = "Actual usage is "
GRAPHS_DURATION = line_pattern("Graph capturing finished in ", r"Graph capturing finished in ([\d.]+) s")
#: on a CPU, no line contains the duration of the compilation, which takes place between these lines. real (0.32.0)
CPU_COMPILE_START = line_pattern("Warming up model for the compilation...")
CPU_COMPILE_END = line_pattern("Warming up done.")
#: FlashInfer tunes its kernels between these lines. reported
AUTOTUNE_START = line_pattern("Autotuning process starts")
AUTOTUNE_END = line_pattern("Autotuning process ends")
#: real
LOADING_SHARDS = line_pattern("Loading safetensors checkpoint shards")
SHARDS = line_pattern(LOADING_SHARDS.needle, LOADING_SHARDS.pattern + r":\s+\d+% Completed \| (\d{1,6})/(\d{1,6})")
#: source 0.15 to 0.27
MAMBA_FALLBACK = line_pattern("Mamba cache 'all' mode: falling", r"falling back to '(\w+)' mode")

# -- settings --------------------------------------------------------------------------------------------------------------

#: all settings of the engine. real. After a crash they are logged again as "Dumping input data for V1 LLM engine", which must not match
CONFIG_DUMP = line_pattern(
    "Initializing a V", r"Initializing a V\d LLM engine \(v(?P<version>[^)]{1,100})\) with config: (?P<config>.*)"
)

#: fields of the dump. real; chunked_prefill_enabled until 0.11.0, cudagraph_mode in JSON and as numbers until 0.11 (source)
DUMP_FIELDS: dict[str, re.Pattern[str]] = {
    "chunked_prefill": re.compile(r"\b(?:enable_chunked_prefill|chunked_prefill_enabled)=(True|False)\b"),
    "prefix_caching": re.compile(r"\benable_prefix_caching=(True|False)\b"),
    "kv_cache_dtype": re.compile(r"\bkv_cache_dtype=([^,\s]{1,200}),"),
    "quantization": re.compile(r"\bquantization=([^,\s]{1,200}),"),
    "max_model_len": re.compile(r"\bmax_seq_len=(\d+),"),
    # source 0.12 to 0.33; a level in older releases
    "compile_mode": re.compile(r"'mode': <CompilationMode\.(\w{1,40}):"),
    "cudagraph_mode": re.compile(
        r"['\"]cudagraph_mode['\"]: ?(?:<CUDAGraphMode\.(?=\w+:))?(\w+(?=[:,])|\[\d, ?\d\])|\benforce_eager=(?P<eager>True),"
    ),
}
#: names of CUDAGraphMode for the numbers in the log of 0.11.0 (source); eager mode counts as "0"
CUDAGRAPH_NUMBERS = {
    "0": "NONE",
    "1": "PIECEWISE",
    "2": "FULL",
    "[2, 0]": "FULL_DECODE_ONLY",
    "[2, 1]": "FULL_AND_PIECEWISE",
}

_MODE_CHANGE_PATTERN = r"CUDAGraphMode\.\w+ is not supported .{0,1000}?setting cudagraph_mode=(?:CUDAGraphMode\.)?(\w+)"
CUDAGRAPH_MODE_CHANGE = line_pattern("CUDAGraphMode.", _MODE_CHANGE_PATTERN)
ATTENTION_BACKEND = line_pattern(
    "Using ", r"Using (Flash ?Attention|FlashInfer|Triton(?= backend on)|FlashMLA|[\w ]{0,40}?MLA) backend"
)
#: readings of lines; later lines override earlier ones and the dump. real unless a comment names another source
VALUES: tuple[tuple[str, LinePattern], ...] = (
    *(("version", banner) for banner in BANNERS),
    ("speculation", line_pattern(ARGUMENTS.needle, r"'speculative_config': \{[^{}]{0,500}?'method': '(\w{1,40})'")),
    ("architecture", line_pattern("Resolved architecture: ", r"Resolved architecture: (\S+)")),
    ("mamba_cache_mode", line_pattern("Mamba cache mode is set to '", r"Mamba cache mode is set to '(\w+)'")),
    # source 0.15 to 0.27
    (
        "mamba_cache_mode",
        line_pattern("Prefix caching in Mamba cache '", r"Prefix caching in Mamba cache '(\w+)' mode is"),
    ),
    ("mamba_cache_mode", MAMBA_FALLBACK),
    ("block_size", line_pattern("Setting attention block size to ", r"Setting attention block size to (\d+) tokens")),
    ("kv_cache_tokens", KV_CACHE_SIZE),
    (
        "max_concurrency",
        line_pattern("Maximum concurrency for ", r"concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ),
    # reported, 0.15 to 0.33; the other spellings: source 0.9 to 0.12
    ("attention_backend", line_pattern("Using ", r"Using (\w+) attention backend")),
    ("attention_backend", ATTENTION_BACKEND),
    ("attention_backend", line_pattern("Using AttentionBackendEnum.", r"Using AttentionBackendEnum\.(\w+) backend")),
    # source 0.11 to 0.33: a mode that the backend does not support is changed after the dump
    *((name, CUDAGRAPH_MODE_CHANGE) for name in ("cudagraph_mode", "cuda_graphs")),
    ("weights_s", WEIGHTS_DURATION),
    ("compile_s", COMPILE_DURATION),
    ("graphs_s", GRAPHS_DURATION),
    # source 0.32.0, v1/worker; in 0.9 to 0.30 with "GiB and"
    ("weights_gib", line_pattern("Model loading took ", r"Model loading took ([\d.]+) GiB")),
    ("kv_cache_gib", line_pattern("Available KV cache memory: ", r"KV cache memory: ([\d.]+) GiB")),
    (
        "kv_cache_gib",
        line_pattern("GiB memory for KV Cache as specified", r"reserved ([\d.]+) GiB memory for KV Cache"),
    ),
    # real: on a CPU, with --kv-cache-memory-bytes and with a share of memory
    (
        "kv_cache_gib",
        line_pattern(") GiB for KV cache", r"(?:Explicitly|Auto) set \(([\d.]+)/[\d.]+\) GiB for KV cache"),
    ),
    ("graphs_gib", line_pattern(GRAPHS_DURATION.needle, r"finished in [\d.]+ s\w*, took ([\d.]+) GiB")),
    (
        "weights_gib",
        line_pattern(ACTUAL_USAGE_NEEDLE, r"Actual usage is (?<![\d.])([\d.]{1,20}) GiB for (?:consumed|weight)"),
    ),
    ("activation_gib", line_pattern(ACTUAL_USAGE_NEEDLE, r"(?<![\d.])([\d.]{1,20}) GiB for peak activation")),
    ("non_torch_gib", line_pattern(ACTUAL_USAGE_NEEDLE, r"(?<![\d.])([\d.]{1,20}) GiB for non-torch memory")),
    ("init_s", line_pattern("(profile, create kv cache, warmup model) took ", r"warmup model\) took ([\d.]+) s")),
)

#: readings implied by a line, which override the dump. chunked prefill: source 0.11.0, 0.33.0; prefix caching: source 0.32.0
IMPLIED_READINGS: tuple[tuple[str, LinePattern, bool], ...] = (
    ("chunked_prefill", line_pattern("Disabling chunked prefill for model without KVCache"), False),
    ("chunked_prefill", line_pattern("Disabling chunked prefill: model has non-causal"), False),
    ("prefix_caching", line_pattern("Disabling prefix caching: model has non-causal"), False),
)

#: printed only if chunked prefill is on, but not always: the source of 0.17 to 0.33 has this line, and no real log of 0.32.0 does. Its
#: absence does not mean that chunked prefill is off
CHUNKED_PREFILL_ON = line_pattern("Chunked prefill is enabled with max_num_batched_tokens=")

# -- stages ----------------------------------------------------------------------------------------------------------------

#: stages of a start, in their order, each with the lines that begin it
STAGES: tuple[tuple[str, tuple[LinePattern, ...]], ...] = (
    ("arguments", (ARGUMENTS,)),
    ("engine", (CONFIG_DUMP,)),
    ("weights", (line_pattern("Starting to load model "), LOADING_SHARDS)),
    ("compile", (WEIGHTS_DURATION, COMPILE_DURATION, line_pattern("Dynamo bytecode transform"))),
    ("kv cache", (KV_CACHE_SIZE,)),
    ("autotune", (AUTOTUNE_START,)),
    ("graphs", (line_pattern("Capturing CUDA graphs"), GRAPHS_DURATION)),
    ("server", (line_pattern("Starting vLLM server "), line_pattern("Starting vLLM API server "))),
    ("ready", (line_pattern("Application startup complete."),)),
)

#: "11-21 00:07:43" in vLLM's lines (real), with the year in FlashInfer's
CLOCK_PATTERN = re.compile(
    r"\b(?:\d{4}-)?(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<milli>\d{3}))?"
)

#: process, level, time and file; the file is without brackets until 0.8
PREFIX_PATTERN = re.compile(
    r"^.{0,120}?\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]+\]|\w{1,80}\.py:\d{1,6}\]) "
)

# -- warnings ----------------------------------------------------------------------------------------------------------------

#: source 0.17.1 to 0.33.0
UNREAD_VARIABLE = line_pattern(
    "Unknown vLLM environment variable", r"Unknown vLLM environment variable detected: (\w{1,100})"
)

WARNINGS: tuple[LinePattern, ...] = (
    UNREAD_VARIABLE,
    line_pattern(
        "This model does not officially support ", r"does not officially support (?:disabling )?chunked prefill"
    ),
    line_pattern("Disabling calculate_kv_scales for hybrid model"),
    line_pattern("Triton kernel JIT compilation during inference"),
    MAMBA_FALLBACK,
    line_pattern("--mamba-cache-mode is deprecated"),  # it has no effect from 0.33.0 (source)
    line_pattern("The NVIDIA Driver was not detected."),  # from NVIDIA's entrypoint; the engine may start nevertheless
    line_pattern("Enforce eager set"),  # real: no torch.compile, no CUDA graphs
    line_pattern("Compiling model again due to a load failure"),  # real: the compile cache exists, but is unusable
    line_pattern("Using default MoE config. Performance might be sub-optimal"),  # source
    line_pattern("Your GPU does not have native support for FP"),  # source: FP8 or FP4 weights on a weight-only kernel
    line_pattern("Encoder-decoder models do not support chunked prefill nor prefix caching"),  # source 0.10 to 0.33
    # source 0.10 to 0.14
    line_pattern("Hybrid or mamba-based model detected", r"Hybrid or mamba-based model detected.{0,500}disabling"),
)

#: sentence for a failure while serving whose cause is unknown
SPECULATION_SUSPECTED = (
    "Speculation is on ({0}): run `bench.ab` without speculative-config to see whether it is the cause."
)

# -- the end ---------------------------------------------------------------------------------------------------------------

#: a requested shutdown; errors after this line are part of it. real
STOPPING = line_pattern("[shutdown] API server: shutdown triggered")
#: a requested shutdown of a server that was ready, in older releases (source 0.9 to 0.17) and from uvicorn (real). A failed start also
#: prints these lines, after the reason
STOPPING_WHEN_READY = line_pattern("Shutting down", r"Shutting down FastAPI HTTP server|\bINFO:\s+Shutting down\s*$")

#: lines of these levels never report a failure, although they may quote one
HARMLESS_LINE_PATTERN = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d\d-\d\d \d\d:")


# Lines about the compute device, for hosts where nvidia-smi shows no process.
#
# "GPU KV cache size: " is not among them: releases before 0.32 print it on a CPU too (source).

#: in the config dump (source 0.7 to 0.33)
GPU_LINES: tuple[LinePattern, ...] = (line_pattern(" device_config=cuda"),)
#: in the config dump, and in the line of the cache's size. real (0.32.0)
CPU_LINES: tuple[LinePattern, ...] = (
    line_pattern(" device_config=cpu"),
    line_pattern("CPU KV cache size: ", r"CPU KV cache size: [\d,]+ tokens"),
)


# Lines of a member's log about its cluster.
#
# real: a cluster of two members with vLLM 0.32.0 on a CPU, in tests/data. source: vLLM of these releases, NCCL 2.30. reported: logs
# from GB10 users. NCCL logs only with NCCL_DEBUG=INFO.

#: printed after the member has joined the group. real; 0.11.2 to 0.33, with more fields after the second number in newer releases
#: (source)
ASSIGNED_RANK_PATTERN = r"\brank (\d{1,6}) in world size (\d{1,6}) is assigned as DP rank"
#: the configured rank, printed before the member has joined the group. real; source 0.11.2 to 0.33
INTENDED_RANK_PATTERN = (
    r"\bworld_size=(\d{1,6}) rank=(\d{1,6}) local_rank=\d+ distributed_init_method=\S+ backend=(\w{1,40})"
)
INTENT_NEEDLE = " local_rank="

#: readings of lines; later lines override earlier ones
MEMBER_VALUES: tuple[tuple[str, LinePattern], ...] = (
    ("rank", line_pattern("DP rank ", ASSIGNED_RANK_PATTERN)),
    ("world_size", line_pattern("DP rank ", ASSIGNED_RANK_PATTERN.replace(r"(\d{1,6}) in", r"\d{1,6} in"))),
    (
        "intended_world_size",
        line_pattern(INTENT_NEEDLE, INTENDED_RANK_PATTERN.replace(r"rank=(\d{1,6}) local", r"rank=\d{1,6} local")),
    ),
    (
        "intended_rank",
        line_pattern(INTENT_NEEDLE, INTENDED_RANK_PATTERN.replace(r"world_size=(\d{1,6})", r"world_size=\d{1,6}")),
    ),
    ("backend", line_pattern(INTENT_NEEDLE, r"\bworld_size=\d+ rank=\d+ local_rank=\d+ \S+ backend=(\w{1,40})")),
    # source 0.11 to 0.33: on rank 0 only
    ("nccl", line_pattern("is using nccl==", r"vLLM is using nccl==([\w.+-]{1,40})")),
    # reported: IB, Socket, and IBext_v10 with NVIDIA's plugin
    ("network", line_pattern("Using network ", r"NCCL INFO Using network (\w{1,40})")),
)

#: the transport of a channel between two members. reported
RDMA = line_pattern("via NET/IB", r"via NET/IB(?:ext_v\d+)?/\d+")
SOCKETS = line_pattern("via NET/Socket", r"via NET/Socket/\d+")
NO_ADAPTER = line_pattern("NET/IB : No device found")

#: readings implied by a line
MEMBER_IMPLIED_READINGS: tuple[tuple[str, LinePattern, bool], ...] = (
    ("over_rdma", RDMA, True),
    ("over_sockets", SOCKETS, True),
    ("adapters_found", NO_ADAPTER, False),
    ("adapters_found", line_pattern("NET/IB : Using ", r"NET/IB : Using \[\d+\]\S+:\d+/RoCE"), True),
)
MEMBER_WARNINGS: tuple[LinePattern, ...] = (SOCKETS, NO_ADAPTER)
