"""The user's files: hosts, recipes, playbooks and the lock, read and checked."""
