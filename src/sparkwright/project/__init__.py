"""Reads and validates the user's files: hosts, recipes, playbooks and the lock file."""
