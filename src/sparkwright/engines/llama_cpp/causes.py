"""Causes of slowness that only llama.cpp has, read from its log. Pure.

Sources: llama.cpp b11549, llama-model.cpp ("offloaded N/M layers to GPU", the size of each buffer) and llama-kv-cache.cpp (types
of K and V); without `flash-attn` or with unlike types the attention kernels of CUDA fall back.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.engines.slowness import Cause, Seen


def layers_on_the_cpu(seen: Seen) -> Iterator[Cause]:
    """Yield the cause that n-gpu-layers, or `fit`, left layers on the CPU."""
    offloaded, line = seen.in_log("gpu_layers")
    if not offloaded:
        return
    on_gpu, layers = (int(number) for number in str(offloaded).split(" of "))
    name = f"{layers - on_gpu} of {layers} layers are on the CPU"
    if on_gpu < layers:
        share = _cpu_share(seen)
        yield Cause(name, "found", f"{line}{share}", "n-gpu-layers: all", weight=130)
    else:
        yield Cause("layers on the CPU", "excluded", line)


def flash_attention_off(seen: Seen) -> Iterator[Cause]:
    state, line = seen.in_log("flash_attention")
    if state == "disabled":
        yield Cause("flash attention is off", "found", line, "flash-attn: true", weight=35)


def unlike_cache_types(seen: Seen) -> Iterator[Cause]:
    """Yield the cause of unlike KV cache types: CUDA's flash attention is built for equal types unless GGML_CUDA_FA_ALL_QUANTS
    was set."""
    kinds, line = seen.in_log("kv_cache_dtype")
    if kinds and "," in str(kinds):
        fix = "the same type for cache-type-k and cache-type-v"
        yield Cause("its K and V caches have unlike types", "found", line, fix, weight=45)


def _cpu_share(seen: Seen) -> str:
    """Return the bytes of the weights on either side, if the log tells them."""
    sizes = [seen.in_log(name)[0] for name in ("cpu_weights_mib", "gpu_weights_mib")]
    if not all(sizes):
        return ""
    cpu, gpu = (float(size) / 1024 for size in sizes)
    return f"; {cpu:.1f} of {cpu + gpu:.1f} GiB of its weights"


DETECTORS = (layers_on_the_cpu, flash_attention_off, unlike_cache_types)
