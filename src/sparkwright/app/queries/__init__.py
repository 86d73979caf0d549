"""Short requests to hosts outside a run, and the output of their answers."""
