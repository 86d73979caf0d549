"""Whatever a stranger can send is read without a crash, a traceback, a second of CPU time or a heap of memory.

`make test` asks each target forty times, `make test-all` two hundred, `make test-faults` (SPARKWRIGHT_FUZZ=10000) ten thousand times.
"""
