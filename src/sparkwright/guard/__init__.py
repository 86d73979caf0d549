"""The memory guard: a process that watches a server start or serve, and kills it before the host runs out of memory.

It imports only built-in modules of Python, so that its process takes a few megabytes, all of which are locked in memory.
"""
