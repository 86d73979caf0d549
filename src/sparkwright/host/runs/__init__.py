"""Runs on a host: the lock, the journal of each run, and the context of its modules."""
