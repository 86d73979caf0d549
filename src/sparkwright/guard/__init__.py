"""The guard of a host's memory: a process of its own that watches a server start or serve, and kills it before the host is lost.

Imports nothing but the built-in parts of Python: its process is a few megabytes, all of them locked in memory.
"""
