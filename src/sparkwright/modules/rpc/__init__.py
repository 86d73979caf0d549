"""Modules that only commands call, never a playbook."""
