"""One model over several hosts: how vLLM splits it, what each member is started with, and what their logs prove."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MEMBER":
        from sparkwright.engines.vllm.parallel.log import member

        return member
    if name != "PARALLEL":
        raise AttributeError(name)
    from sparkwright.engines.vllm.parallel import part

    return part
