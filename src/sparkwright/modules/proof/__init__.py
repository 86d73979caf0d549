"""Modules that verify something before or after a server is replaced. They change nothing."""
