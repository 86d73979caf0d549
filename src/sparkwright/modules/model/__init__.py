"""Modules about a model's files."""
