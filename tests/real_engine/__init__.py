"""Sparkwright's predictions compared with the real vLLM, on a CPU, with models of a few million random weights."""
