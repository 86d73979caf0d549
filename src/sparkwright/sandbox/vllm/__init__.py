"""A pretend vLLM: it takes the real one's arguments, refuses what that refuses, in its words, and streams like it."""
