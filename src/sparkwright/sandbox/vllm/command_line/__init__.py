"""The command line of the pretend `vllm`: options by version, its config file, and what it answers at once."""
