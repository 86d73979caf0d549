"""Containers: their options, their state in Docker, and their processes."""
