"""Import of recipes in other formats: each is read into a `ForeignRecipe`, then converted, with a report of all parts."""
