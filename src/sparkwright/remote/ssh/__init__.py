"""An ssh connection as the user's own ssh would make it: configuration, keys, host keys, and the requests over it."""
