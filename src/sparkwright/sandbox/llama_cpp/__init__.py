"""A simulated llama-server with the real one's options, errors and streams."""
