"""Reasons why an engine did not start or failed."""
