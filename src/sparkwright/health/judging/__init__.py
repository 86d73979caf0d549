"""Evaluating an observation, and damping the reported state."""
