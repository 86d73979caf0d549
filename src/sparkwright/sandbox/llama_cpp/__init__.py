"""A pretend llama-server: it takes the real one's arguments, refuses what that refuses, in its words, and streams like it."""
