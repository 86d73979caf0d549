"""The start-up log, line by line as version 0.32.0 writes it, each with how long the step before it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sparkwright.sandbox.vllm.arguments import Arguments
from sparkwright.sandbox.vllm.config import Config

LOGO = ("", "       █     █     █▄   ▄█", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        "  █▄█▀ █     █     █     █  model   {model}", "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀", "")  # fmt: skip
LOAD_S = 2.4
COMPILE_S = 0.8
API, CORE = "(APIServer pid=1)", "(EngineCore pid=77)"


def before_engine(config: Config, arguments: Arguments, version: str) -> Iterator[tuple[float, str]]:
    """Banner, arguments, what is decided before the engine's process starts."""
    for line in LOGO:
        yield 0, _info(API, "api_utils.py:347", line.format(version=version, model=config.model))
    given = {"model": config.model, **{k.replace("-", "_"): v for k, v in arguments.values.items() if k != "api-key"}}
    yield 0, _info(API, "api_utils.py:286", f"non-default args: {given}")
    yield 0.3, _info(API, "model.py:733", f"Resolved architecture: {config.architecture}")
    yield 0, _info(API, "model.py:2152", f"Using max model len {config.max_model_len}")
    if not config.chunked_prefill:
        said = "This model does not officially support disabling chunked prefill. Disabling this manually may cause the engine"
        yield 0, _line("WARNING", API, "arg_utils.py:2301", f"{said} to crash or produce incorrect outputs.")
    if config.hybrid and config.prefix_caching:
        said = f"Mamba cache mode is set to 'align' for {config.architecture} by default when prefix caching is enabled"
        yield 0, _info(API, "config.py:688", said)
    if config.hybrid and arguments.switch("calculate-kv-scales", False):
        said = f"Disabling calculate_kv_scales for hybrid model '{config.model}'. Hybrid models with recurrent layers"
        yield 0, _line("WARNING", API, "config.py:702", f"{said} (GDN, Mamba, SSM) produce unreliable KV cache scales.")


def engine(config: Config, version: str) -> Iterator[tuple[float, str]]:
    """The config dump, the weights, the cache."""
    dump = (
        f"model='{config.model}', speculative_config=None, tokenizer='{config.model}', dtype=torch.bfloat16, "
        f"max_seq_len={config.max_model_len}, tensor_parallel_size=1, quantization=fp8, enforce_eager=False, "
        f"kv_cache_dtype={config.kv_cache_dtype}, device_config=cuda, seed=0, served_model_name={config.served_name}, "
        f"enable_prefix_caching={config.prefix_caching}, enable_chunked_prefill={config.chunked_prefill}, pooler_config=None"
    )
    yield 0.3, _info(CORE, "core.py:133", f"Initializing a V1 LLM engine (v{version}) with config: {dump}")
    yield (
        0.2,
        _info(CORE, "cuda.py:412", "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER']"),
    )
    yield 0, _info(CORE, "gpu_model_runner.py:3102", f"Starting to load model {config.model}...")
    for n in range(config.shards + 1):
        share = 100 * n // max(1, config.shards)
        yield (
            LOAD_S / max(1, config.shards),
            (
                f"Loading safetensors checkpoint shards: {share:3d}% Completed | {n}/{config.shards} [00:0{n % 10}<00:00,  5.83it/s]"
            ),
        )
    yield 0, _info(CORE, "default_loader.py:501", f"Loading weights took {LOAD_S:.2f} seconds")
    if config.hybrid:
        said = f"Setting attention block size to {config.block_tokens} tokens to ensure that attention page size is >= mamba page"
        yield 0, _info(CORE, "interface.py:1096", f"{said} size.")
    yield COMPILE_S, _info(CORE, "monitor.py:34", f"torch.compile takes {COMPILE_S:.2f} s in total")
    tokens = round(config.utilization * 1_450_000 / 16) * 16
    times = tokens / config.max_model_len
    said = f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {config.max_model_len:,} tokens per request:"
    yield 0.2, _info(CORE, "kv_cache_utils.py:2327", f"{said} {times:.2f}x")
    yield (
        0.2,
        _info(
            CORE,
            "core.py:402",
            "init engine (profile, create kv cache, warmup model) took 1.40 s (compilation: 0.80 s)",
        ),
    )


def serving(config: Config) -> Iterator[tuple[float, str]]:
    """The server comes up."""
    yield 0, _info(API, "entry.py:136", "Supported tasks: ['generate']")
    yield 0, _info(API, "entry.py:140", f"Starting vLLM server on http://0.0.0.0:{config.port}")
    yield 0, _info(API, "launcher.py:186", "Available routes are:")
    for route, methods in (
        ("/health", "GET"),
        ("/metrics", "GET"),
        ("/v1/models", "GET"),
        ("/v1/chat/completions", "POST"),
    ):
        yield 0, _info(API, "launcher.py:195", f"Route: {route}, Methods: {methods}")
    yield 0, "INFO:     Started server process [1]"
    yield 0, "INFO:     Waiting for application startup."
    yield 0, "INFO:     Application startup complete."


def no_memory(config: Config, free_gib: float, total_gib: float) -> Iterator[str]:
    """The death for want of memory."""
    want = config.utilization * total_gib
    yield (
        f"{CORE} ERROR {_now()} [core.py:1510] ValueError: Free memory on device cuda:0 ({free_gib:.2f}/{total_gib:.2f} GiB) on "
        f"startup is less than desired GPU memory utilization ({config.utilization:g}, {want:.2f} GiB). Decrease GPU memory"
        " utilization or reduce GPU memory used by other processes."
    )
    yield "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def stopping() -> Iterator[str]:
    """What a graceful stop says."""
    yield _info(API, "launcher.py:254", "[shutdown] API server: shutdown triggered")
    yield "INFO:     Shutting down"
    yield "INFO:     Application shutdown complete."


def dying() -> Iterator[str]:
    """What an engine that dies on a request says, before its process ends with exit code 0."""
    said = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."
    yield f"{API} ERROR {_now()} [async_llm.py:718] {said}"
    yield 'INFO:     127.0.0.1:59292 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    yield "INFO:     Shutting down"
    yield "INFO:     Finished server process [1]"


def crashing() -> Iterator[str]:
    """A crash loop's every turn."""
    yield f"{CORE} ERROR {_now()} [core.py:1510] RuntimeError: CUDA error: an illegal memory access was encountered"
    yield "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


def _now() -> str:
    return time.strftime("%m-%d %H:%M:%S")


def _line(level: str, who: str, where: str, said: str) -> str:
    return f"{who} {level} {_now()} [{where}] {said}"


def _info(who: str, where: str, said: str) -> str:
    return _line("INFO", who, where, said)
