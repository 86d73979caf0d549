"""From the user's files to a host's plan: what is rendered, what the lock pins, which peer hands out a model."""
