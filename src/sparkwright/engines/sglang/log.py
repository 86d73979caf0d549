"""The format of SGLang's log, from the source of 0.5.9 and 0.5.23; not tested with a real log.

Lines begin with "[2026-11-21 00:07:43 TP0] "; the rank is omitted if there is only one.
"""

from __future__ import annotations

import re
from typing import Any

from sparkwright.engines.log import resolution
from sparkwright.engines.log.failure_collector import FailurePattern, failure_pattern
from sparkwright.engines.log.log_format import LogFormat, ResolutionRules
from sparkwright.engines.log.machine_failures import CRASH_FAILURES, HOST_FAILURES, IMAGE_FAILURES
from sparkwright.engines.log.text import LinePattern, line_pattern, parse_count, parse_number

#: entrypoints/engine.py. source 0.5.9: "ServerArgs(model_path='/m', ...)"; 0.5.23: a dict, "{'model_path': '/m', ...}"
ARGUMENTS = line_pattern("server_args=", r"server_args=(?:ServerArgs\(|\{)")
USAGE = line_pattern("usage: ", r"^usage: (?:sglang serve|launch_server\.py) ")
#: "sglang serve" in 0.5.23, "launch_server.py" in 0.5.9
ARGPARSE = line_pattern("error: ", r"^(?:sglang serve|launch_server\.py): error: ")
LOADED = line_pattern("Load weight end.", r"Load weight end\. elapsed=([\d.]+) s")
KV_CACHE = line_pattern("KV Cache is allocated. ", r"KV Cache is allocated\. .{0,80}?#tokens: ([\d,]+)")
#: a string that only the scheduler's line with several settings contains (managers/scheduler.py)
SCHEDULER_NEEDLE = "max_total_num_tokens="
GRAPHS_BEGIN = line_pattern("uda graph begin", r"[Cc]apture cuda graph begin")
GRAPHS_BEGIN_NEW = line_pattern("CUDA graph begin", r"Capture .{0,80}?CUDA graph begin")
READY = line_pattern("The server is fired up and ready to roll!")


def _scheduler_line(name: str) -> LinePattern:
    return line_pattern(SCHEDULER_NEEDLE, rf"\b{name}=(-?\d+)")


STAGES: tuple[tuple[str, tuple[LinePattern, ...]], ...] = (
    ("arguments", (ARGUMENTS,)),
    ("weights", (line_pattern("Load weight begin."),)),
    ("kv cache", (KV_CACHE, line_pattern("KV Cache VA upper bound."), line_pattern("Mamba Cache is allocated."))),
    ("graphs", (GRAPHS_BEGIN, GRAPHS_BEGIN_NEW)),
    ("scheduler", (line_pattern(SCHEDULER_NEEDLE),)),
    ("ready", (READY,)),
)

#: readings and the lines that contain them; later lines override earlier ones, and the scheduler's line comes last. Its
#: chunked_prefill_size is -1 if chunked prefill is off
VALUES: tuple[tuple[str, LinePattern], ...] = (
    ("weights_s", LOADED),
    ("weights_gib", line_pattern(LOADED.needle, r"mem usage=([\d.]+\d) GB")),
    ("kv_cache_tokens", KV_CACHE),
    ("kv_cache_keys_gib", line_pattern(KV_CACHE.needle, r"K size: ([\d.]+) GB")),
    ("kv_cache_values_gib", line_pattern(KV_CACHE.needle, r"V size: ([\d.]+) GB")),
    ("graphs_gib", line_pattern("graph end.", r"[Gg]raph end\. .{0,200}?mem usage=([\d.]+\d) GB")),
    # without the dtype in 0.5.9
    ("kv_cache_dtype", line_pattern(KV_CACHE.needle, r"KV Cache is allocated\. dtype: (?:torch\.)?(\w+)")),
    (
        "kv_cache_dtype",
        line_pattern("Post-capture KV sizing: KV cache allocated.", r"allocated\. dtype: (?:torch\.)?(\w+)"),
    ),
    ("kv_cache_tokens", _scheduler_line("max_total_num_tokens")),
    ("max_model_len", _scheduler_line("context_len")),
    ("chunked_prefill", _scheduler_line("chunked_prefill_size")),
    ("slots", _scheduler_line("max_running_requests")),
    ("prefix_caching", line_pattern(ARGUMENTS.needle, r"\bdisable_radix_cache(?:=|': )(True|False)")),
    ("quantization", line_pattern(ARGUMENTS.needle, r"\bquantization(?:=|': )'?([\w-]+)")),
    # resolved before this line is logged, but None in 0.5.9 if it is chosen later
    ("attention_backend", line_pattern(ARGUMENTS.needle, r"\battention_backend(?:=|': )'(\w+)'")),
    ("attention_backend", line_pattern("Attention backend not specified. Use ", r"Use (\w+) backend by default")),
)

#: values of readings that a line implies. managers/scheduler.py of 0.5.23: logged after the scheduler's line, which has the requested size
IMPLIED_READINGS: tuple[tuple[str, LinePattern, Any], ...] = (
    ("chunked_prefill", line_pattern("Chunked prefill is disabled for multimodal models"), False),
)

#: sizes in GiB, although the log calls them GB; see `log.state.gpu_memory_bytes`
MEMORY_READINGS = ("weights_gib", "kv_cache_keys_gib", "kv_cache_values_gib", "graphs_gib")

FAILURES: tuple[FailurePattern, ...] = (
    failure_pattern(
        "error: unrecognized arguments: ", r"error: unrecognized arguments: (.+)", "unknown argument: {0}."
    ),
    failure_pattern(
        "error: ", r"^(?:sglang serve|launch_server\.py): error: (.+?)\.?$", "the engine refuses its arguments: {0}."
    ),
    # the share includes the weights, so it must be raised, not lowered
    failure_pattern(
        "Not enough memory. Please try to increase",
        r"mem_fraction_static=([\d.]+\d)",
        "no memory is left for its KV cache: mem-fraction-static {0} is too low for the weights.",
    ),
    failure_pattern(
        "Loaded weights leave no GPU memory for the KV cache",
        r"--mem-fraction-static=([\d.]+\d)",
        "no memory is left for its KV cache: mem-fraction-static {0} is too low for the weights.",
    ),
    failure_pattern(
        "state cache is too small",
        "",
        "the state cache of this recurrent model is too small: raise mem-fraction-static or lower max-running-requests.",
    ),
    failure_pattern(
        "Model architectures [",
        r"Model architectures \[?'?(\w{1,200}+)'?[^\]]{0,500}\]? are not supported",
        "this engine cannot load {0}.",
    ),
    failure_pattern("Prefill out of memory.", "", "it ran out of memory during prefill.", "always"),
    failure_pattern("Decode out of memory.", "", "it ran out of memory during decoding.", "always"),
    failure_pattern("CUDA out of memory", "", "it ran out of memory."),
    *HOST_FAILURES,
    *IMAGE_FAILURES,
    failure_pattern(
        "out of resource: shared memory",
        r"(OutOfResources: out of resource: shared memory, Required: \d+, Hardware limit: \d+)",
        "{0}: a kernel needs more shared memory than a block of this GPU has; use another attention-backend or moe-runner-backend.",
        "always",
    ),
    failure_pattern(  # issue 18203, on a Spark
        "Could not load any common_ops library",
        "",
        "its compiled kernels (sgl_kernel) cannot be loaded: they were built for another CUDA, PyTorch or GPU; use another image.",
    ),
    failure_pattern(  # issues 3752 and 5862; "Scheduler watchdog timeout" in newer releases
        "atchdog timeout (",
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(\d+)",
        "a step of its scheduler took longer than watchdog-timeout ({0} s): it hung and shut down.",
        "always",
    ),
    failure_pattern("CUDA error: ", r"CUDA error: (.+?)\.?$", "CUDA failed: {0}."),
    failure_pattern(
        "OOM killer",
        r"scheduler died during initialization \(exit code: -9\)",  # words: data
        "a process of its engine was OOM-killed.",
    ),
    failure_pattern(
        "Exit code: -9", r"Exit code: -9$", "its scheduler was killed, probably by the kernel's OOM killer."
    ),
    *CRASH_FAILURES,
    failure_pattern(
        "scheduler died during initialization",  # words: data
        r"Rank (\d+) scheduler died during initialization \(exit code: (-?\d+)\)",  # words: data
        "its scheduler {0} exited with code {1}.",
        kind="consequence",
    ),
    failure_pattern(
        "scheduler is dead",  # words: data
        r"Rank (\d+) scheduler is dead",  # words: data
        "its scheduler {0} exited.",
        kind="consequence",
    ),
    failure_pattern("Scheduler hit an exception", "", "its scheduler failed.", "always", "consequence"),
    failure_pattern(
        "crashed with exit",
        r"Subprocess (\S+) .{0,80}?crashed with exit code (-?\d+)",
        "its process {0} exited with code {1}.",
        "always",
        "consequence",
    ),
    failure_pattern(
        "Initialization failed. warmup error:", r"warmup error: (.+?)\.?$", "its first request failed: {0}."
    ),
    *(
        failure_pattern(needle, "", "a process of its engine failed.", "always", "consequence")
        for needle in ("SIGQUIT received. ", "Received sigquit from a child proces")  # "proces." in some releases
    ),
)

#: exceptions of a process that exits because another process exited
SECONDARY_ERROR_PATTERN = re.compile(
    r"^(?:KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError|ConnectionResetError|EOFError)\b"
    r"|gloo/transport/tcp/pair\.cc.{0,80}?Connection closed|Initialization failed"
)

#: backends after resolution (source of 0.5.9 and 0.5.23)
KERNELS: tuple[tuple[str, LinePattern], ...] = (
    ("attention", line_pattern(ARGUMENTS.needle, r"\battention_backend(?:=|': )'(?!auto')(\w+)'")),
    ("attention", line_pattern("Attention backend not specified. Use ", r"Use (\w+) backend by default")),
    ("MoE", line_pattern(ARGUMENTS.needle, r"\bmoe_runner_backend(?:=|': )'(?!auto')(\w+)'")),
    ("linear", line_pattern(ARGUMENTS.needle, r"\bfp[48]_gemm(?:_runner)?_backend(?:=|': )'(?!auto')(\w+)'")),
)
#: settings that are omitted: they differ at each start, or are secret
HIDDEN_SETTING_PATTERN = re.compile(r"key|token|password|secret|random_seed|_port$|^port$|^host$")


def parse_settings_line(text: str) -> dict[str, str] | None:
    """Return the settings in the line that contains all of them, without those that HIDDEN_SETTING_PATTERN matches; None for other lines."""
    match = ARGUMENTS.match(text)
    if not match:
        return None
    inside = text[match.end() :].rstrip().removesuffix(")").removesuffix("}")
    return {name: value for name, value in resolution.parse_pairs(inside) if not HIDDEN_SETTING_PATTERN.search(name)}


#: server_args.py of 0.5.23: the arguments are printed after they were resolved
RESOLUTION = ResolutionRules(
    readings={"attention-backend": "attention_backend"},
    ignored_flags=frozenset(
        (
            *("model-path", "model", "tokenizer-path", "served-model-name", "tool-call-parser", "reasoning-parser"),
            *("chunked-prefill-size", "load-format", "json-model-override-args"),
        )
    ),
    equivalent_values=(
        frozenset(("half", "float16")),
        frozenset(("modelopt", "modelopt_fp4", "modelopt_fp8")),
        frozenset(("fp8", "fp8_e4m3")),
    ),
)

LOG = LogFormat(
    noise=(" HTTP/1.", "Prefill batch", "Decode batch"),
    arguments_line=ARGUMENTS,
    refusals=(USAGE,),
    later_refusals=(ARGPARSE,),
    stages=STAGES,
    reading_lines=VALUES,
    implied_readings=IMPLIED_READINGS,
    kernels=KERNELS,
    resolution=RESOLUTION,
    parse_settings=parse_settings_line,
    value_parsers={
        "chunked_prefill": lambda text: int(text) > 0,
        "prefix_caching": lambda text: text == "False",
        "weights_s": parse_number,
        **dict.fromkeys(MEMORY_READINGS, parse_number),
        "quantization": lambda text: "none" if text == "None" else text,
        **dict.fromkeys(("kv_cache_tokens", "max_model_len", "slots"), parse_count),
    },
    extra_readings=("slots", *MEMORY_READINGS),
    failures=FAILURES,
    has_tracebacks=True,
    secondary_error_pattern=SECONDARY_ERROR_PATTERN,
    harmless_pattern=re.compile(r"(?!)"),
    shutdown_lines=(line_pattern("SIGTERM received."),),
    prefix_pattern=re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\] "),
    clock_pattern=re.compile(
        r"^\[\d{4}-(?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    ),
    long_line_needle=ARGUMENTS.needle,
)
