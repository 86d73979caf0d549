"""Untrusted input of any form is read without a crash or traceback, in bounded CPU time and memory.

`make test` runs 40 examples per target, `make test-all` 200, `make test-faults` (SPARKWRIGHT_FUZZ=10000) 10,000.
"""
