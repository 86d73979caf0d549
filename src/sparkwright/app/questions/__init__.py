"""Short requests to hosts, without a run, and the output of their answers."""
