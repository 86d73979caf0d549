"""The options of `vllm serve`: which there are, what they take, and a command line made of them."""

from sparkwright.engines.vllm.flags import flags as FLAGS

__all__ = ["FLAGS"]
