"""A simulated vLLM with the real one's options, errors, log lines and streams."""
