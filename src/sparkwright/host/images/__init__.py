"""Images: their names, their registries, their way between hosts."""
