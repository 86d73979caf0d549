"""Containers: what they are made of, what the engine says of them, which processes are theirs."""
