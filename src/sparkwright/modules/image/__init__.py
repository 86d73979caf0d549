"""Modules about container images."""
