"""llama-server's log: its tables.

real: logs in tests/data of builds for the CPU: b10068, b11549, and of b10434 what it says before it computes. source: its own. Much of a start is told only with
`-lv 4`; without it the readings of those lines are unknown. Each line begins with minutes.seconds.ms.us since the process began
and a letter for its level; what refuses arguments has no prefix.
"""

from __future__ import annotations

import re
from typing import Any

from sparkwright.engines.llama_cpp.failures import FAILURES
from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.resolution import Resolution
from sparkwright.engines.log.text import Line, integer, line, number

_PREFIX = r"^\d{1,6}\.\d\d\.\d{3}\.\d{3} "

#: function that logs the server's events. real: the first until b10434, the second in b11549.
_BY = r"(?:llama_server|init): "

#: only with -lv 4. real.
BUILD = line("common_params_print_info: build ", r"print_info: build (\d+ \(\w+\))")
#: b11549
BUILD_INFO = line("init: build_info: ", r"init: build_info: (b\d+-\S+)")
VERBOSITY = line("common_params_print_info: verbosity = ")
#: before any other line. real.
REFUSED = (
    line("error: invalid argument: ", r"^error: invalid argument: "),
    line("error while handling argument ", r"^error while handling argument "),
)
SLOTS = line("load_model: initializing, n_slots = ", r"initializing, n_slots = (\d+)")
#: the address follows. real.
LISTENING = line(": listening on ", _BY + "listening on ")
#: a device of its own; `CUDA_Host` is the host's side
_GPU = r"(?:CUDA|Vulkan|ROCm)\d+ "
#: a model with sliding windows has two caches, and a draft model one of its own: a line for each. real.
KV_CACHE = line("llama_kv_cache: size = ", r"llama_kv_cache: size = +([\d.]+) MiB")
CAPPED = line(
    "exceeds the training context of the model", r"the slot context \(\d+\) exceeds the training context of the model"
)
#: -fit shrank a context that no flag sets, to leave memory free. source; only with -lv 4.
REDUCED = line("context size reduced from ", r"context size reduced from \d{1,12} to \d{1,12}")


def _build(text: str) -> str:
    """Return the build as /props writes it: b10434-7e4c0a9."""
    return text if text.startswith("b") else "b" + text.replace(" (", "-").rstrip(")")


def _of_both(text: str) -> str:
    """Return the type of keys and values if they have the same, else both types."""
    keys, values = re.findall(r"[KV] \((\w+)\)", text)
    return keys if keys == values else f"K {keys}, V {values}"


STAGES: tuple[tuple[str, tuple[Line, ...]], ...] = (
    ("arguments", (VERBOSITY,)),
    ("model", (line("load_model: loading model '"),)),
    ("weights", (line("load_tensors: loading model tensors"),)),
    ("context", (line("llama_context: constructing llama_context"),)),
    ("kv cache", (KV_CACHE,)),
    ("warm-up", (line("common_init_: warming up the model"),)),
    ("slots", (SLOTS,)),
    ("server", (line(": model loaded", _BY + "model loaded"),)),
    ("ready", (LISTENING,)),
)

#: later lines win. real; all but the line of the slots only with -lv 4.
VALUES: tuple[tuple[str, Line], ...] = (
    ("version", BUILD),
    ("version", BUILD_INFO),
    ("architecture", line("print_info: arch  ", r"print_info: arch +=\s*(\S+)")),
    ("quantization", line("print_info: file type ", r"print_info: file type +=\s*(\S{1,40}(?: [\w()-]{1,20}){0,4})")),
    ("kv_cache_tokens", line("llama_context: n_ctx  ", r"llama_context: n_ctx +=\s*(\d+)")),
    ("flash_attention", line("llama_context: flash_attn ", r"llama_context: flash_attn +=\s*(\w+)")),
    ("kv_cache_mib", KV_CACHE),
    ("kv_cache_dtype", line(KV_CACHE.needle, r"(K \(\w+\):.{0,40}?, V \(\w+\))")),
    # no evidence of the device: printed without any GPU too
    ("gpu_layers", line("load_tensors: offloaded ", r"offloaded (\d{1,5}/\d{1,5}) layers to GPU")),
    ("cpu_weights_mib", line("CPU_Mapped model buffer size = ", r"CPU_Mapped model buffer size = +([\d.]+) MiB")),
    ("gpu_weights_mib", line(" model buffer size = ", _GPU + r"model buffer size = +([\d.]+) MiB")),
    # compute buffers, and the state of recurrent layers. real for a CPU; seen for a GPU, b8467 to b11549
    ("gpu_compute_mib", line(" compute buffer size = ", _GPU + r"compute buffer size = +([\d.]+) MiB")),
    ("recurrent_mib", line("llama_memory_recurrent: size = ", r"llama_memory_recurrent: size = +([\d.]+) MiB")),
    ("slots", SLOTS),
    ("max_model_len", line(SLOTS.needle, r"n_ctx_slot = (\d+)")),
    ("kv_unified", line(SLOTS.needle, r"kv_unified = '(true|false)'")),
)


#: readings of sizes, each the sum of its lines
SIZES = ("kv_cache_mib", "recurrent_mib", "cpu_weights_mib", "gpu_weights_mib", "gpu_compute_mib")


def _switched(given: Any) -> Any:
    """Return the value of flash-attn in the log's words; "auto" stays."""
    return {"on": "enabled", "1": "enabled", "off": "disabled", "0": "disabled"}.get(str(given).casefold(), given)


LOG = LogBook(
    # answers of the model, with whole exceptions in them, and lines of each request
    noise=("unparsed ", "got exception: ", "print_timing: "),
    banners=(BUILD, BUILD_INFO),
    arguments=VERBOSITY,
    refused=REFUSED,
    stages=STAGES,
    values=VALUES,
    # "flash_attn = auto" is settled later. real.
    kernel_readings=(
        ("flash attention", "flash_attention"),
        ("GPU layers", "gpu_layers"),
        ("KV cache", "kv_cache_dtype"),
    ),
    resolution=Resolution(
        readings={"flash-attn": "flash_attention", "parallel": "slots"}, values={"flash-attn": _switched}
    ),
    fixed=(
        ("flash_attention", line("resolve_fused_ops: Flash Attention enabled"), "enabled"),
        ("flash_attention", line("resolve_fused_ops: Flash Attention was auto, set to disabled"), "disabled"),
    ),
    types={
        "version": _build,
        "kv_cache_dtype": _of_both,
        "gpu_layers": lambda text: text.replace("/", " of "),
        **dict.fromkeys(SIZES, number),
        "kv_unified": lambda text: text == "true",
        **dict.fromkeys(("slots", "max_model_len", "kv_cache_tokens"), integer),
    },
    summed=frozenset(SIZES),
    also=("slots", "kv_unified", "flash_attention", "gpu_layers", *SIZES),
    always={
        "chunked_prefill": (
            True,
            "llama-server always reads a prompt in batches (-b, -ub); there is no flag to turn it off",
        )
    },
    unmet=(CAPPED,),
    warnings=(
        REDUCED,
        line("possible training context overflow"),
        line("failed to fit params to free device memory"),
        line("no usable GPU found"),  # source
        line("CORS is set to allow all origins"),
        line("CORS allows all origins"),
    ),
    failures=FAILURES,
    harmless=re.compile(_PREFIX + "[DIWT] "),
    # after SIGTERM; a start that fails prints it too, after the reason
    stopping_when_ready=(line("cleaning up before exit..."),),
    prefix=re.compile(_PREFIX + r"[DIWET] (?:\w{3,4} )? *"),
    clock=re.compile(r"^(?P<minute>\d{1,6})\.(?P<second>\d\d)\.(?P<milli>\d{3})\.\d{3} "),
    # "offloaded 5/5 layers to GPU" is no evidence: it is printed without any GPU. real.
    on_gpu=(line(" model buffer size = ", r"load_tensors: +(?:CUDA|Vulkan|ROCm)\d+ model buffer size = +[\d.]+ MiB"),),
    on_cpu=(line("CPU_Mapped model buffer size = ", r"load_tensors: +CPU_Mapped model buffer size = +[\d.]+ MiB"),),
)
