"""The host's side of a run: tasks, the host's lock, the journal, and events."""
