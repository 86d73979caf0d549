"""Modules that the members of a cluster run together."""
