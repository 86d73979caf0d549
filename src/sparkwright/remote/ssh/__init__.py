"""ssh connections that use the configuration, keys and known hosts of the user's ssh, and requests over them."""
