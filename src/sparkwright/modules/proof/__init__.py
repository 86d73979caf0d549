"""Modules that verify something before or after a swap. They change nothing."""
