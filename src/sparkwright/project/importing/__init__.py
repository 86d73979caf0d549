"""Import of recipes in other formats: a recipe is read into a `ForeignRecipe`, then converted, with a report of each setting."""
