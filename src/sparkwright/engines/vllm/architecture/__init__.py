"""What kind of model a config.json describes, and which release of vLLM loads it."""
