"""What a person, or a program, sees of a run while it goes on: the subscribers of its events."""
