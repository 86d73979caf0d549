"""Import of recipes in other formats: a `ForeignRecipe` for each text, then a recipe, with a report of each part's outcome."""
