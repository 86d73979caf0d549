"""Plan a host's run from the user's files: render templates, add pins from the lock, and find the peer that shares a model."""
