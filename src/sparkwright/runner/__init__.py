"""The host's side of a run: the tasks, the host's lock, the journal, and the events."""
