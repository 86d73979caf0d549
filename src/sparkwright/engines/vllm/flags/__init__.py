"""The options of `vllm serve`: which there are, what they take, and a command line made of them."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "FLAGS":
        raise AttributeError(name)
    from sparkwright.engines.vllm.flags import flags

    return flags
