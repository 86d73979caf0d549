"""What goes on beside a measurement on the same machine: the GPU sampled, this client's lag, no garbage collection."""
