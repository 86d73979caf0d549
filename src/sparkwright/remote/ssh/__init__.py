"""ssh connections as the user's own ssh would make them: configuration, keys, host keys, and requests."""
