"""Experiments: what is served (arms), what is sent (loads), in which order, and the play that does it on a host."""
