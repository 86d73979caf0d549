"""The live output of a run for a person or a program: subscribers of its events."""
