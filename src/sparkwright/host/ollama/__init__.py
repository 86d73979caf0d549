"""Ollama: where it runs, what it has loaded, and its API."""
