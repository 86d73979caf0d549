"""The options of `vllm serve`: their names, their values, and the command line of a recipe."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "FLAGS":
        raise AttributeError(name)
    from sparkwright.engines.vllm.flags import flags

    return flags
