"""Reads and validates the user's YAML files. Errors give the line of the value, and suggest names for misspelled ones."""
