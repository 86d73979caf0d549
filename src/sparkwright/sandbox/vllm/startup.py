"""The log lines that each version of vLLM writes, from its start to its exit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sparkwright.sandbox.memory import TOTAL_BYTES
from sparkwright.sandbox.vllm.command_line import Arguments, Release, parse_release
from sparkwright.sandbox.vllm.config import (
    FIRST_RELEASE_IGNORING_CACHE_MODE,
    FIRST_RELEASE_WITH_ALIGN_MODE,
    FIRST_RELEASE_WITH_HYBRID_CACHING_ON,
    LAST_RELEASE_WITHOUT_HYBRID_CACHING,
    Config,
)
from sparkwright.sandbox.vllm.model import Adapter
from sparkwright.units import GIB

LOGO = ("", "       █     █     █▄   ▄█", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        "  █▄█▀ █     █     █     █  model   {model}", "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀", "")  # fmt: skip
LOAD_S = 2.4
COMPILE_S, WARM_COMPILE_S = 0.8, 0.1
API_PREFIX, CORE_PREFIX, WORKER_PREFIX = "(APIServer pid=1)", "(EngineCore pid=77)", "(Worker pid=141)"

LOGO_SINCE: Release = (0, 15, 0)
#: the config dump has "enable_chunked_prefill"; earlier versions have "chunked_prefill_enabled"
ENABLE_LABEL_SINCE: Release = (0, 11, 1)
#: a warning is logged if chunked prefill is disabled
CHUNKED_OFF_WARNING_SINCE: Release = (0, 12, 0)
#: the worker logs the block size of a hybrid model; in earlier versions, the API server does
WORKER_BLOCK_SIZE_SINCE: Release = (0, 18, 0)
#: "vLLM server on" instead of "vLLM API server 0 on", and the compilation time in the line about the engine's start
SERVER_WORDING_SINCE: Release = (0, 18, 0)
#: "CPU KV cache size" is logged on a CPU; earlier versions log "GPU KV cache size" there as well
CPU_CACHE_LABEL_SINCE: Release = (0, 32, 0)
#: the kernel backend of a mixture of experts is logged
MOE_BACKEND_LINE_SINCE: Release = (0, 15, 0)
#: calculate_kv_scales is disabled for hybrid models
KV_SCALES_OFF_SINCE: Release = (0, 19, 0)

ROUTES = (
    ("/openapi.json", "HEAD, GET"), ("/docs", "HEAD, GET"), ("/load", "GET"), ("/version", "GET"), ("/health", "GET"),
    ("/metrics", "GET"), ("/tokenize", "POST"), ("/detokenize", "POST"), ("/v1/models", "GET"), ("/ping", "GET"),
    ("/ping", "POST"), ("/v1/chat/completions", "POST"), ("/v1/completions", "POST"),
)  # fmt: skip

#: pairs of a delay in seconds and the line that is logged after it
TimedLines = Iterator[tuple[float, str]]


def banner_lines(arguments: Arguments, version: str) -> TimedLines:
    """Yield the banner with the version and the non-default arguments."""
    if parse_release(version) >= LOGO_SINCE:
        for line in LOGO:
            yield 0, _info_line(API_PREFIX, "api_utils.py:347", line.format(version=version, model=arguments.model))
    else:
        yield 0, _info_line(API_PREFIX, "api_server.py:1351", f"vLLM API server version {version}")
    yield 0, _info_line(API_PREFIX, "api_utils.py:286", f"non-default args: {arguments.non_default(version)}")


def architecture_lines(architecture: str) -> TimedLines:
    """Yield the log line that names the model's class. It precedes those of `settings_lines`."""
    yield 0.3, _info_line(API_PREFIX, "model.py:733", f"Resolved architecture: {architecture}")


def settings_lines(config: Config, arguments: Arguments, version: str) -> TimedLines:
    """Yield the log lines about the settings that are resolved before the engine core's process starts."""
    release = parse_release(version)
    yield 0, _info_line(API_PREFIX, "model.py:2152", f"Using max model len {config.max_model_len}")
    if not config.chunked_prefill and release >= CHUNKED_OFF_WARNING_SINCE:
        message = "This model does not officially support disabling chunked prefill. Disabling this manually may cause the engine"
        yield 0, _warning_line("arg_utils.py:3005", f"{message} to crash or produce incorrect outputs.")
    if config.hybrid:
        yield from _recurrent_lines(config, arguments, release)
    if config.eager:
        message = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This is equivalent to setting"
        message = f"{message} -cc.mode=none -cc.cudagraph_mode=none and --kernel_config.enable_jit_warmup=False"
        yield 0, _warning_line("vllm.py:1703", message)


def _recurrent_lines(config: Config, arguments: Arguments, release: Release) -> TimedLines:
    is_requested = arguments.switch("enable_prefix_caching", False)
    if release <= LAST_RELEASE_WITHOUT_HYBRID_CACHING:
        message = "Hybrid or mamba-based model detected: disabling prefix caching since it is not yet supported."
        yield 0, _info_line(API_PREFIX, "config.py:339", message)
    elif release < FIRST_RELEASE_WITH_ALIGN_MODE and is_requested and not config.prefix_caching:
        message = "Hybrid or mamba-based model detected without support for prefix caching: disabling."
        yield 0, _info_line(API_PREFIX, "config.py:339", message)
    elif release >= FIRST_RELEASE_WITH_ALIGN_MODE:
        yield from _mode_lines(config, arguments.text("mamba_cache_mode"), release)
    if arguments.switch("calculate_kv_scales", False) and release >= KV_SCALES_OFF_SINCE:
        message = (
            f"Disabling calculate_kv_scales for hybrid model '{config.model}'. Hybrid models with recurrent layers (GDN, Mamba,"
            " SSM) produce unreliable KV cache scales. Using default scale of 1.0 instead."
        )
        yield 0, _warning_line("config.py:702", message)
    if release < WORKER_BLOCK_SIZE_SINCE:
        yield from _block_size_lines(config, API_PREFIX, "config.py")


def _mode_lines(config: Config, requested_mode: str, release: Release) -> TimedLines:
    mode = config.mamba_cache_mode
    if release >= FIRST_RELEASE_IGNORING_CACHE_MODE and requested_mode:
        message = "--mamba-cache-mode is deprecated and will be removed in v0.33.0. It has no effect: Mamba prefix caching follows"
        yield 0, _warning_line("config.py:688", f"{message} --enable-prefix-caching.")
    elif mode == "none" and requested_mode not in ("", "none"):
        yield 0, _warning_line("config.py:688", "Mamba cache mode is set to 'none' when prefix caching is disabled")
    elif mode != "none" and not requested_mode:
        message = f"Mamba cache mode is set to '{mode}' for {config.architecture} by default when prefix caching is"
        message = f"{message} enabled"
        yield (
            0,
            _format_line(
                "INFO" if release >= FIRST_RELEASE_WITH_HYBRID_CACHING_ON else "WARNING",
                API_PREFIX,
                "config.py:688",
                message,
            ),
        )
    elif requested_mode == "all" and mode == "align":
        message = "Hybrid or mamba-based model detected without support for prefix caching with Mamba cache 'all' mode: falling back to"
        yield 0, _warning_line("config.py:691", f"{message} 'align' mode.")
    if mode != "none" and release < FIRST_RELEASE_WITH_HYBRID_CACHING_ON:
        message = f"Warning: Prefix caching in Mamba cache '{mode}' mode is currently enabled. Its support for Mamba layers is"
        yield (
            0,
            _info_line(
                API_PREFIX, "config.py:695", f"{message} experimental. Please report any issues you may observe."
            ),
        )


def worker_lines(lines: Iterable[str]) -> TimedLines:
    """Turn messages such as "[pynccl.py:12] message" into log lines of a worker."""
    for line in lines:
        source, _, message = line.removeprefix("[").partition("] ")
        yield 0, _info_line(WORKER_PREFIX, source, message)


def loading_lines(config: Config, version: str, device: str, moe_backend: str) -> TimedLines:
    """Yield the config dump, and the log lines that are written while the weights are loaded.

    Args:
        device: cuda or cpu.
        moe_backend: kernel backend of a mixture of experts.
    """
    message = f"Initializing a V1 LLM engine (v{version}) with config: {_config_dump(config, version, device)}"
    yield 0.3, _info_line(CORE_PREFIX, "core.py:133", message)
    yield 0, _info_line(WORKER_PREFIX, "gpu_model_runner.py:3102", f"Starting to load model {config.model}...")
    backend = str(config.echoed_values.get("attention_backend") or "FLASHINFER").upper()
    message = f"Using {backend} attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']."
    yield 0.2, _info_line(WORKER_PREFIX, "cuda.py:412", message)
    if "Moe" in config.architecture and parse_release(version) >= MOE_BACKEND_LINE_SINCE:
        message = f"Using {moe_backend} Fp8 MoE backend out of potential backends: ['FLASHINFER_CUTLASS', 'MARLIN']."
        yield 0, _info_line(WORKER_PREFIX, "fp8.py:270", message)
    for n in range(config.shard_count + 1):
        share = 100 * n // max(1, config.shard_count)
        remaining = "?, ?it/s" if n == 0 else "00:00,  5.83it/s"
        message = f"Loading safetensors checkpoint shards: {share:3d}% Completed | {n}/{config.shard_count} [00:0{n % 10}<{remaining}]"
        yield LOAD_S / max(1, config.shard_count), message
    yield 0, ""
    yield 0, _info_line(WORKER_PREFIX, "default_loader.py:501", f"Loading weights took {LOAD_S:.2f} seconds")
    if device != "cpu":
        message = f"Model loading took {config.weight_bytes / GIB:.2f} GiB memory and {LOAD_S:.6f} seconds"
        yield 0, _info_line(WORKER_PREFIX, "gpu_model_runner.py:5150", message)
    if config.hybrid and parse_release(version) >= WORKER_BLOCK_SIZE_SINCE:
        yield from _block_size_lines(config, WORKER_PREFIX, "interface.py")


def _block_size_lines(config: Config, process: str, file: str) -> TimedLines:
    message = f"Setting attention block size to {config.block_tokens} tokens to ensure that attention page size is >= mamba page size."
    yield 0, _info_line(process, f"{file}:1096", message)
    message = f"Padding mamba page size by {config.padding_percent:.2f}% to ensure that mamba page size and attention page size are"
    yield 0, _info_line(process, f"{file}:1120", f"{message} exactly equal.")


def cache_lines(config: Config, version: str, device: str, *, has_compile_cache: bool = False) -> TimedLines:
    """Yield the log lines about compilation, the KV cache and the warm-up.

    Args:
        device: cuda or cpu.
        has_compile_cache: the graphs are loaded from a compile cache.
    """
    compile_s = WARM_COMPILE_S if has_compile_cache else COMPILE_S
    if has_compile_cache:
        message = f"Directly load the compiled graph(s) for compile range (1, 4096) from the cache, took {WARM_COMPILE_S:.3f} s"
        yield 0, _info_line(WORKER_PREFIX, "backends.py:296", message)
    if not config.eager:
        yield compile_s, _info_line(WORKER_PREFIX, "monitor.py:34", f"torch.compile takes {compile_s:.2f} s in total")
    if device != "cpu":
        cache = f"{max(0, config.utilization * TOTAL_BYTES - config.weight_bytes) / GIB:.2f}"
        yield 0, _info_line(WORKER_PREFIX, "gpu_worker.py:760", f"Available KV cache memory: {cache} GiB")
    concurrency = config.cache_tokens / config.max_model_len
    device_label = "CPU" if device == "cpu" and parse_release(version) >= CPU_CACHE_LABEL_SINCE else "GPU"
    message = f"{device_label} KV cache size: {config.cache_tokens:,} tokens, Maximum concurrency for {config.max_model_len:,} tokens per request:"
    yield 0.2, _info_line(CORE_PREFIX, "kv_cache_utils.py:2327", f"{message} {concurrency:.2f}x")
    compilation_note = "" if config.eager else f" (compilation: {compile_s:.2f} s)"
    duration = f"1.40 s{compilation_note}" if parse_release(version) >= SERVER_WORDING_SINCE else "1.40 seconds"
    message = f"init engine (profile, create kv cache, warmup model) took {duration}"
    yield 0.2, _info_line(CORE_PREFIX, "core.py:402", message)


def speculation_line(line: str) -> str:
    """Return the log line for statistics of speculative decoding."""
    return _info_line(API_PREFIX, "metrics.py:120", line)


def adapter_lines(adapters: Sequence[Adapter]) -> TimedLines:
    """Yield the log lines about the loaded LoRA adapters."""
    for adapter in adapters:
        yield (
            0,
            _info_line(
                API_PREFIX, "serving.py:227", f"Loaded new LoRA adapter: name '{adapter.name}', path '{adapter.path}'"
            ),
        )


def serving_lines(config: Config, version: str) -> TimedLines:
    """Yield the log lines from the opening of the port until the server is ready."""
    url = f"http://0.0.0.0:{config.port}"
    message = (
        f"vLLM server on {url}" if parse_release(version) >= SERVER_WORDING_SINCE else f"vLLM API server 0 on {url}"
    )
    yield 0, _info_line(API_PREFIX, "entry.py:136", "Supported tasks: ['generate']")
    yield 0, _info_line(API_PREFIX, "entry.py:140", f"Starting {message}")
    yield 0, _info_line(API_PREFIX, "launcher.py:186", "Available routes are:")
    for route, methods in ROUTES:
        yield 0, _info_line(API_PREFIX, "launcher.py:195", f"Route: {route}, Methods: {methods}")
    yield 0, "INFO:     Started server process [1]"
    yield 0, "INFO:     Waiting for application startup."
    yield 0, "INFO:     Application startup complete."


def _config_dump(config: Config, version: str, device: str) -> str:
    label = "enable_chunked_prefill" if parse_release(version) >= ENABLE_LABEL_SINCE else "chunked_prefill_enabled"
    parser = "qwen3" if config.parses_thinking else ""
    rows: dict[str, Any] = {
        "model": repr(config.model), "speculative_config": config.drafts, "tokenizer": repr(config.model),
        "skip_tokenizer_init": False, "tokenizer_mode": "auto", "revision": None, "tokenizer_revision": None,
        "trust_remote_code": False, "dtype": "torch.bfloat16", "max_seq_len": config.max_model_len, "download_dir": None,
        "load_format": "auto", "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1,
        "disable_custom_all_reduce": False, "quantization": config.quantization, "quantization_config": None,
        "enforce_eager": config.eager, "kv_cache_dtype": config.kv_cache_dtype, "device_config": device,
        "structured_outputs_config": f"StructuredOutputsConfig(backend='auto', reasoning_parser={parser!r})",
        "seed": 0, "served_model_name": config.served_names[0], "enable_prefix_caching": config.prefix_caching,
        label: config.chunked_prefill, "pooler_config": None,
        "compilation_config": f"{{'mode': <CompilationMode.{'NONE: 0' if config.eager else 'VLLM_COMPILE: 3'}>, 'backend': 'inductor'}}",
    }  # fmt: skip
    rows |= {name: value for name, value in config.echoed_values.items() if name in rows}
    return ", ".join(f"{name}={value}" for name, value in rows.items())


def no_memory_lines(config: Config, free_gib: float, total_gib: float) -> Iterator[str]:
    """Yield the log lines of a start that fails because too little memory is free."""
    required_gib = config.utilization * total_gib
    yield (
        f"{CORE_PREFIX} ERROR {_timestamp()} [core.py:1510] ValueError: Free memory on device cuda:0 ({free_gib:.2f}/{total_gib:.2f} GiB) on "
        f"startup is less than desired GPU memory utilization ({config.utilization:g}, {required_gib:.2f} GiB). Decrease GPU memory"
        " utilization or reduce GPU memory used by other processes."
    )
    yield "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def stop_lines() -> Iterator[str]:
    """Yield the log lines of a graceful stop."""
    yield _info_line(API_PREFIX, "launcher.py:254", "[shutdown] API server: shutdown triggered")
    yield _info_line(
        API_PREFIX, "launcher.py:270", "[shutdown] API server: stopping engine client mode=abort timeout=0s"
    )
    yield "INFO:     Shutting down"
    yield "INFO:     Waiting for application shutdown."
    yield "INFO:     Application shutdown complete."


def exit_lines() -> Iterator[str]:
    """Yield the last log lines of an engine that fails during a request. Its exit code is 0."""
    message = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    yield f"{API_PREFIX} ERROR {_timestamp()} [async_llm.py:718] {message}"
    yield "INFO:     Shutting down"
    yield "INFO:     Finished server process [1]"


def lost_peer_lines() -> Iterator[str]:
    """Yield the head's log line about a lost connection to another member."""
    reason = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:30090."
    yield f"{CORE_PREFIX} ERROR {_timestamp()} [core.py:1512] RuntimeError: Worker failed with error '{reason}'"


def lost_rank_lines(rank: int) -> Iterator[str]:
    """Yield the log line that a killed rank's parent process writes."""
    message = (
        f"Worker proc VllmWorker-{rank} died unexpectedly (exit code: None), shutting down executor."  # words: data
    )
    yield f"(MainProcess pid=1) ERROR {_timestamp()} [multiproc_executor.py:315] {message}"


def crash_lines() -> Iterator[str]:
    """Yield the last log lines of a start that crashes."""
    yield f"{CORE_PREFIX} ERROR {_timestamp()} [core.py:1510] RuntimeError: CUDA error: an illegal memory access was encountered"
    yield "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


def _timestamp() -> str:
    return time.strftime("%m-%d %H:%M:%S")


def _format_line(level: str, process: str, source: str, message: str) -> str:
    return f"{process} {level} {_timestamp()} [{source}] {message}"


def _info_line(process: str, source: str, message: str) -> str:
    return _format_line("INFO", process, source, message)


def _warning_line(source: str, message: str) -> str:
    return _format_line("WARNING", API_PREFIX, source, message)
