"""vLLM's log: its tables, and the reader of its config dump."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.engines.log.book import LogBook
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.values import integer, number
from sparkwright.engines.vllm.failures.failures import CONSEQUENCES, FAILURES
from sparkwright.engines.vllm.logs import device_lines, kernel_lines, log_lines, settings
from sparkwright.engines.vllm.parallel import lines


def _mode(text: str) -> str:
    return log_lines.CUDAGRAPH_NUMBERS.get(re.sub(r", ?", ", ", text), text)


#: sizes of what it took; see log/gpu_memory.py
MEMORY = ("weights_gib", "activation_gib", "non_torch_gib", "graphs_gib", "kv_cache_gib")
TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("chunked_prefill", "prefix_caching"), lambda text: text == "True"),
    **dict.fromkeys(("block_size", "kv_cache_tokens", "max_model_len"), integer),
    **dict.fromkeys(("rank", "world_size", "intended_rank", "intended_world_size"), integer),
    **dict.fromkeys(("max_concurrency", "weights_s", "compile_s", "graphs_s", "init_s"), number),
    **dict.fromkeys(MEMORY, number),
    "quantization": lambda text: "none" if text == "None" else text,
    "cudagraph_mode": _mode,
    "cuda_graphs": lambda text: _mode(text) != "NONE",
}


def _of_vllm(state: EngineState, line: str) -> bool:
    """Keep the readings of a config dump, and of chunked prefill if its own line is the only source."""
    dump = log_lines.CONFIG_DUMP.match(line)
    if dump:
        _take_dump(state, line, dump)
        return True
    if log_lines.CHUNKED_PREFILL_ON.match(line) and "chunked_prefill" not in state.readings:
        state.keep("chunked_prefill", True, line)
    return False


def _take_dump(state: EngineState, line: str, dump: re.Match[str]) -> None:
    head = line[: dump.start("config")].strip()
    state.keep("version", dump.group("version"), f"{head} ...")
    for name, pattern in log_lines.DUMP_FIELDS.items():
        found = pattern.search(dump.group("config"))
        if found:
            value = ("0" if found.groupdict().get("eager") else found.group(1)).strip("'")
            evidence = f"{head} ... {found.group().strip(',')}, ..."
            state.keep(name, TYPES.get(name, str)(value), evidence)
            if name == "cudagraph_mode":
                state.keep("cuda_graphs", TYPES["cuda_graphs"](value), evidence)


LOG = LogBook(
    noise=log_lines.NOISE,
    banners=log_lines.BANNERS,
    arguments=log_lines.ARGUMENTS,
    refusals=(log_lines.USAGE,),
    refused=(log_lines.ARGPARSE,),
    stages=log_lines.STAGES,
    shards=log_lines.SHARDS,
    values=(*log_lines.VALUES, *lines.VALUES),
    fixed=(*log_lines.FIXED, *lines.FIXED),
    kernels=kernel_lines.KERNELS,
    kernel_readings=kernel_lines.KERNEL_READINGS,
    weight_only=kernel_lines.WEIGHT_ONLY,
    resolution=kernel_lines.RESOLUTION,
    spans=(
        ("autotune_s", log_lines.AUTOTUNE_STARTS, log_lines.AUTOTUNE_ENDS),
        ("compile_s", log_lines.CPU_COMPILE_STARTS, log_lines.CPU_COMPILE_ENDS),
    ),
    types=TYPES,
    warnings=(*log_lines.WARNINGS, *lines.WARNINGS),
    failures=FAILURES,
    tracebacks=True,
    consequences=CONSEQUENCES,
    front="APIServer",
    suspects=(("speculation", log_lines.SPECULATION_SUSPECTED),),
    also=("speculation", "compile_mode", *MEMORY),
    harmless=log_lines.HARMLESS,
    stopping=(log_lines.STOPPING,),
    stopping_when_ready=(log_lines.STOPPING_WHEN_READY,),
    prefix=log_lines.PREFIX,
    clock=log_lines.CLOCK,
    on_gpu=device_lines.ON_GPU,
    on_cpu=device_lines.ON_CPU,
    uncut=log_lines.CONFIG_DUMP.needle,
    hook=_of_vllm,
    hooked=(log_lines.CONFIG_DUMP, log_lines.CHUNKED_PREFILL_ON),
    settings=settings.of_line,
    setting_names=settings.NAMES,
)
