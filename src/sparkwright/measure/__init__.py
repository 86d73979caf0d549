"""Measuring a server on its own host, using only the standard library and counting tokens from usage, not chunks."""
