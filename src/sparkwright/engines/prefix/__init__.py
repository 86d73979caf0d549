"""Prefix caching: an engine's reports about it, and the test that a repeated prefix hits the cache."""
