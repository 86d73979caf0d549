"""GPU memory of an engine by its log, with the same readings for every engine. Pure."""

from __future__ import annotations

from sparkwright.engines.log.state import EngineState
from sparkwright.units import GIB, MIB

#: readings of sizes, with their unit in bytes. weights: with what CUDA and its libraries hold, where the log says that
WEIGHTS = {"weights_gib": GIB, "gpu_weights_mib": MIB}
KV_CACHE = {"kv_cache_gib": GIB, "kv_cache_keys_gib": GIB, "kv_cache_values_gib": GIB, "kv_cache_mib": MIB}
KV_CACHE |= {"recurrent_mib": MIB}
OTHERS = {"activation_gib": GIB, "non_torch_gib": GIB, "graphs_gib": GIB, "gpu_compute_mib": MIB}
#: in the order of a start
READINGS = (*WEIGHTS, *OTHERS, *KV_CACHE)


def of_state(state: EngineState) -> int | None:
    """Return the sum of weights, KV cache, activations and graphs in bytes; None if the log lacks the weights or the cache."""
    sizes = [_bytes(state, readings) for readings in (WEIGHTS, KV_CACHE, OTHERS)]
    return sum(sizes) if sizes[0] and sizes[1] else None


def _bytes(state: EngineState, readings: dict[str, int]) -> int:
    found = ((state.value(name), unit) for name, unit in readings.items())
    return sum(int(value * unit) for value, unit in found if isinstance(value, int | float))
