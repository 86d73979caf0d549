"""The Python API, used as a program uses it."""
