"""Modules, which run on the host: each reads the current state, computes the difference and applies it."""
