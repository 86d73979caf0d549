"""Predictions of vLLM's behaviour with given flags: defaults, block size, effective settings."""
