"""Models and images on hosts: listing, copying, verifying and pruning them."""
