"""The memory guard: a process that watches a server while it starts or serves, and kills it before the host runs out of memory.

It imports only Python's built-in modules, so that its process needs just a few megabytes, all of which are locked in memory.
"""
