"""The hosts, their groups, and the patterns that name them."""
