"""What is wrong with a split of a model, before vLLM says so on every host: importing this registers the rules."""

from __future__ import annotations

from sparkwright.engines.vllm.parallel.case import SPLITS
from sparkwright.engines.vllm.parallel.rules import experts, heads, layers, releases  # noqa: F401

__all__ = ["SPLITS"]
