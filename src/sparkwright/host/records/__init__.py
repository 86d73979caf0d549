"""A host's records of its servers: verified states, history, incidents, baselines."""
