"""Tasks as root: sudo, and the second process that runs them."""
