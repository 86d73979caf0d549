"""Imports recipes in other formats: reads a recipe into a `ForeignRecipe` and converts it, with a report of each setting."""
