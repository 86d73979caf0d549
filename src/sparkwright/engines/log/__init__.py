"""Reads the log of a server's start: what an engine says of itself, by the tables that its own folder keeps (a LogBook)."""
