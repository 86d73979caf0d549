"""Measuring a server from where it runs: standard library only, tokens counted from usage, never from chunks."""
