"""Modules about the gateway: its files, its container, its proof."""
