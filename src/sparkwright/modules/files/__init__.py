"""Modules about files and folders."""
