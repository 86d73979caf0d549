"""The user's YAML files, with the line of each value, and their validation, with suggestions for misspelled names."""
