"""Modules for clusters: links between hosts, and barriers, ranks and secrets of the members."""
