"""Modules of a cluster: what its members do together."""
