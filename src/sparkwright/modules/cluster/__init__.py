"""Modules about a cluster: its links, and its members that wait for each other."""
