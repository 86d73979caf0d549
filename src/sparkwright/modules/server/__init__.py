"""Modules about the server's container: create, stop, keep, restore, wait, and incident diagnostics."""
