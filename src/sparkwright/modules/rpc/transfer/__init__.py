"""Modules that copy an image or a model from one host to another."""
