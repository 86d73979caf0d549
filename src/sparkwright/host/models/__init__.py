"""Models: the hub, transfers that finish, files proved whole, neighbours."""
