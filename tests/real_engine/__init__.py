"""The real engine: vLLM on a CPU, with models of a few million random weights, against what sparkwright says of it."""
