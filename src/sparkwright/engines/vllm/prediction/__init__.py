"""What vLLM will do with its flags: defaults, block size, effective settings."""
