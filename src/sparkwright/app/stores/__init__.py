"""List, copy, verify and prune models and images on hosts."""
