"""Modules for clusters: the links between hosts, barriers, ranks, and the members' shared secret."""
