"""Background tasks of a measurement on the same machine: GPU sampling, the client's lag, no garbage collection."""
