"""Recipes for others: one of ours as sparkrun, compose or docker run say it, pinned."""
