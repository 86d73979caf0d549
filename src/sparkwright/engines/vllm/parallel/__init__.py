"""One model over several hosts with vLLM: splits, the members' settings, and the proof from their logs."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MEMBER":
        from sparkwright.engines.vllm.parallel.proof import member

        return member
    if name != "PARALLEL":
        raise AttributeError(name)
    from sparkwright.engines.vllm.parallel import part

    return part
