"""Modules: each reads the present state of one thing, computes the difference, and makes it so. On the host."""
