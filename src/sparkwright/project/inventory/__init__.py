"""Hosts, their groups, and the patterns that select them."""
