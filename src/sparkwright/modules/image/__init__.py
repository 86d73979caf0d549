"""Modules that pull, copy, serve and inspect images."""
