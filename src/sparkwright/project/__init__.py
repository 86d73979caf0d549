"""Reading and validation of the user's files: hosts, recipes, playbooks and the lock."""
