"""Simulated Sparks that serve one model together: the link between them and faults of single members."""
