"""Ollama: its instances, its loaded models, and its API."""
