"""Modules about the memory that CPU and GPU share."""
