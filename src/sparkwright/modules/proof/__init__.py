"""Modules that prove something, before a swap or after it. They change nothing."""
