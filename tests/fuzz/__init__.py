"""Untrusted input of any form is read without a crash or traceback, in bounded CPU time and memory.

`make test` asks each target forty times, `make test-all` two hundred, `make test-faults` (SPARKWRIGHT_FUZZ=10000) ten thousand times.
"""
