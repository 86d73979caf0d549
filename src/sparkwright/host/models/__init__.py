"""Models: the hub, reliable transfers, verified files, peers."""
