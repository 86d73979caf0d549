"""The command line of the simulated `vllm`: options by version, its config file, and output that needs no engine."""
