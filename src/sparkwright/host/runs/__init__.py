"""The runs on a host: the lock, the journal of each, and what a module may use while it runs."""
