"""Rules about the split of a model, to find errors before vLLM reports them on every host. Importing this registers the rules."""

from __future__ import annotations

from sparkwright.engines.vllm.parallel.case import SPLITS
from sparkwright.engines.vllm.parallel.rules import experts, heads, layers, releases  # noqa: F401

__all__ = ["SPLITS"]
