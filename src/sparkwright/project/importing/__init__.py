"""Recipes of others: each format's text becomes a `Foreign`, that one recipe of ours, with a report of what became of what."""
