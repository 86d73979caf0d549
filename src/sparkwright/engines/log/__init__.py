"""Parse the log of a server's start with the tables of its engine (a LogFormat)."""
