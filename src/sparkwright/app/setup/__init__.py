"""A host's first minute: found, logged in to, surveyed, and written into the project's files."""
