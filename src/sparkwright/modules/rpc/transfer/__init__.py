"""Modules by which one host hands an image or a model to another."""
