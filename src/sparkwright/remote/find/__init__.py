"""Discovery of hosts that are not in an inventory yet: from the user's ssh files, and from the local network."""
