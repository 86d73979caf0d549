"""Modules that measure for an experiment: its cells, its arms and their containers."""
