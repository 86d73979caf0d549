"""Planning of a host's run from the user's files: rendering, the pins of the lock, the peer that hands out a model."""
