"""What a person, or a program, sees of a run: subscribers of the events."""
