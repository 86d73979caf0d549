"""Modules for the server's container: creating, starting, stopping, keeping and restoring it, and collecting diagnostics."""
