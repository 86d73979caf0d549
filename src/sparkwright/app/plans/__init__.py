"""Planning of a host's run from the user's files: rendering, the lock's pins, and the peer that hands out a model."""
