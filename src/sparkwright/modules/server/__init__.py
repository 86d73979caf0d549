"""Modules about the server's container: create, stop, keep, restore, wait, and what is kept of a failure."""
