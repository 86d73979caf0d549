"""Reader of the log of a server's start, by the tables in its engine's folder (a LogFormat)."""
