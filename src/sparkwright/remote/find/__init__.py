"""Hosts that nobody has written down yet: from the user's ssh files, and from the local network."""
