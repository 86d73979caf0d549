"""Modules: each reads the present state of one thing, computes the difference, and makes it so. They run on the host."""
