"""Recipes: one way to serve one model, and its container on a host.

`recipe.engine_settings` imports everything about the engine, which many plays do not need, so it is imported where it is used.
"""

from sparkwright.project.inventory.variables import DEFAULTS
from sparkwright.project.recipe.recipe import Recipe, load, names, readable, serve_port
from sparkwright.project.recipe.scope import PINNED_NAMES, RECIPE_NAMES, scope

__all__ = ["DEFAULTS", "PINNED_NAMES", "RECIPE_NAMES", "Recipe", "load", "names", "readable", "scope", "serve_port"]
