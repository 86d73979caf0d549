"""A simulated vLLM: it takes the real one's arguments, refuses what that refuses, and streams like it."""
