"""Access to the host, shared by the modules."""
