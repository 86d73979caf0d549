"""The log lines of a simulated SGLang, with the wording of 0.5.23's source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sparkwright.sandbox.sglang.config import Config
from sparkwright.units import GIB

LOAD_S = 2.4
GRAPH_CAPTURE_S = 0.8
GRAPH_BYTES = GIB
READY_LINE = "The server is fired up and ready to roll!"
SIGTERM_LINE = "SIGTERM received. signum=15 frame=None. Draining requests and shutting down..."
GRACEFUL_EXIT_LINE = "Gracefully exiting... Remaining number of requests {}. Remaining requests remaining_rids=[]."
LAUNCH_SIGQUIT_LINE = "Received sigquit from a child process. It usually means the child failed."
SIGQUIT_LINE = "SIGQUIT received. signum=3, frame=None. It usually means one child failed."
TOO_LITTLE_MEMORY_ERROR = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
NO_KERNEL_ERROR = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"

#: pairs of a delay in seconds and the line that is logged after it
TimedLines = Iterator[tuple[float, str]]


def stamp_line(line: str) -> str:
    """Return a log line with its timestamp."""
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}"


def argument_lines(config: Config) -> TimedLines:
    """Yield the log lines about the default attention backend, if it is used, and about the server's arguments."""
    if not config.is_backend_explicit:
        backend = config.arguments["attention_backend"]
        yield 0.3, stamp_line(f"Attention backend not specified. Use {backend} backend by default.")
    yield 0, stamp_line(f"server_args={dict(config.arguments)}")


def loading_lines(config: Config, free_bytes: int) -> TimedLines:
    """Yield the log lines that are written while the weights are loaded.

    Args:
        free_bytes: free memory before the load.
    """
    remaining_bytes = free_bytes - config.weight_bytes
    quant_clause = f"quant={config.quantization}, " if config.quantization else ""
    yield 0.3, stamp_line(f"Load weight begin. avail mem={_format_gb(free_bytes)} GB")
    details = (
        f"elapsed={LOAD_S:.2f} s, type={config.architecture}, {quant_clause}avail mem={_format_gb(remaining_bytes)} GB"
    )
    yield LOAD_S, stamp_line(f"Load weight end. {details}, mem usage={_format_gb(config.weight_bytes)} GB.")


def cache_lines(config: Config, free_bytes: int, device: str) -> TimedLines:
    """Yield the log lines about the KV cache, the CUDA graphs and the scheduler.

    Args:
        free_bytes: free memory after the weights and the cache were allocated.
        device: cuda or cpu.
    """
    half_gb = _format_gb(config.kv_tokens * config.kv_bytes_per_token // 2)
    sizes = f"#tokens: {config.kv_tokens}, K size: {half_gb} GB, V size: {half_gb} GB"
    yield 0.2, stamp_line(f"KV Cache is allocated. dtype: {config.kv_type}, {sizes}")
    yield 0, stamp_line(f"Memory pool end. avail mem={_format_gb(free_bytes)} GB")
    memory_key = "available_cpu_mem" if device == "cpu" else "available_gpu_mem"
    if device != "cpu":
        capture_message = "Capture target decode CUDA graph"
        yield (
            0,
            stamp_line(
                f"{capture_message} begin. backend=full, num_tokens_per_req=1, avail mem={_format_gb(free_bytes)} GB"
            ),
        )
        details = f"elapsed={GRAPH_CAPTURE_S:.2f} s, mem usage={_format_gb(GRAPH_BYTES)} GB"
        free_bytes -= GRAPH_BYTES
        yield (
            GRAPH_CAPTURE_S,
            stamp_line(f"{capture_message} end. bs=[1, 2, 4, 8], {details}, avail mem={_format_gb(free_bytes)} GB."),
        )
    rows: dict[str, Any] = {
        "max_total_num_tokens": config.kv_tokens,
        "chunked_prefill_size": config.arguments["chunked_prefill_size"],
        "max_prefill_tokens": config.arguments["max_prefill_tokens"],
        "max_running_requests": config.max_num_seqs,
        "context_len": config.context,
        memory_key: f"{_format_gb(free_bytes)} GB",
    }
    yield 0, stamp_line(", ".join(f"{name}={value}" for name, value in rows.items()))


def serving_lines(config: Config) -> TimedLines:
    """Yield the log lines between opening the port and readiness."""
    yield 0, stamp_line("INFO:     Started server process [1]")
    yield 0, stamp_line("INFO:     Waiting for application startup.")
    yield 0, stamp_line("INFO:     Application startup complete.")
    address = f"http://{config.arguments['host']}:{config.arguments['port']}"
    yield 0, stamp_line(f"INFO:     Uvicorn running on {address} (Press CTRL+C to quit)")


def no_memory_lines(config: Config) -> list[str]:
    """Return the last log lines if --mem-fraction-static leaves no memory for the KV cache."""
    return scheduler_death_lines(
        f"{TOO_LITTLE_MEMORY_ERROR} Current value: mem_fraction_static={config.share}", LAUNCH_SIGQUIT_LINE
    )


def scheduler_death_lines(error: str, sigquit_line: str) -> list[str]:
    """Return the last log lines after an exception in the scheduler, which ends the server.

    Args:
        error: last line of the traceback.
        sigquit_line: SIGQUIT_LINE, or LAUNCH_SIGQUIT_LINE during the start.
    """
    return [
        stamp_line("Scheduler hit an exception: Traceback (most recent call last):"),
        '  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 6311, in run_scheduler_process',
        error,
        "",
        stamp_line(sigquit_line),
        stamp_line("kill_process_tree called: parent_pid=1, include_parent=True, pid=1"),
    ]


def _format_gb(size_bytes: int) -> str:
    return f"{max(0, size_bytes) / GIB:.2f}"
