"""Modules that download, verify, serve and restore the files of a model."""
