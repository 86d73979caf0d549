"""Data about SGLang with its sources, and pure readers of its output."""
