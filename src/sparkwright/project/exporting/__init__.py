"""Export of a recipe to sparkrun, compose or docker run, with its pins."""
