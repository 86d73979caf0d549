"""A gateway on this host: its folder, its files, and what a running HAProxy says of itself."""
