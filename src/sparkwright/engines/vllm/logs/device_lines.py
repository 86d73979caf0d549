"""Lines of vLLM's log about its compute device: evidence where nvidia-smi has none.

"GPU KV cache size: " is no evidence: versions before 0.32 print it on a CPU too (source).
"""

from __future__ import annotations

from sparkwright.engines.log.line import Line, line

#: in the config dump (source 0.7 to 0.33)
ON_GPU: tuple[Line, ...] = (line(" device_config=cuda"),)
#: in the config dump, and beside the cache's size. real (0.32.0).
ON_CPU: tuple[Line, ...] = (
    line(" device_config=cpu"),
    line("CPU KV cache size: ", r"CPU KV cache size: [\d,]+ tokens"),
)
