"""What a host remembers of its servers: verified states, history, incidents, baselines."""
