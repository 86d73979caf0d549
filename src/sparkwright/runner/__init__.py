"""The host's side of a run: tasks in order, the host's lock, the journal, and the events."""
