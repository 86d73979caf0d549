"""Data about vLLM with its sources, and pure readers of its output. No I/O."""
