"""Images: names, registries, and copies between hosts."""
