"""Evaluate an observation, and damp the reported state."""
