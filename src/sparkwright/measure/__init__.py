"""Measure a server on its own host: standard library only, tokens counted from usage, never from chunks."""
