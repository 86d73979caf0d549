"""Modules for the gateway: its files, its container, and the test of its responses."""
