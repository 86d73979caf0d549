"""Short questions to hosts, without a run: what is asked, and what becomes of the answers."""
