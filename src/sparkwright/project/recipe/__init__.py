"""Recipes: one way to serve one model, and what that means on one host.

`recipe.serving`, which asks all that is known of the engine, is imported where it is used: many a play needs nothing of it.
"""

from sparkwright.project.inventory.variables import DEFAULTS
from sparkwright.project.recipe.recipe import Recipe, load, names, readable, serve_port
from sparkwright.project.recipe.scope import PINNED_NAMES, RECIPE_NAMES, scope

__all__ = ["DEFAULTS", "PINNED_NAMES", "RECIPE_NAMES", "Recipe", "load", "names", "readable", "scope", "serve_port"]
