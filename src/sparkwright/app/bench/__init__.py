"""The lab on the laptop: an order becomes an experiment, and its cells come back as results."""
