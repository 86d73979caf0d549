"""Containers: their options, their state in the engine, and their processes."""
