"""Models: the hub, transfers that finish, verified files, peers."""
