"""Import of recipes in other formats: a `Foreign` for each text, then a recipe, with a report of each part's outcome."""
