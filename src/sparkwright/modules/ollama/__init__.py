"""Modules about Ollama."""
