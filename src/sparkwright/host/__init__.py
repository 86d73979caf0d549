"""The host side: reading and changing the host, shared by several modules."""
