"""Recipes, each of which is one way to serve one model, and their containers on hosts.

Many plays do not need `recipe.engine_settings`, which imports all rules of the engine, so it is imported where it is used.
"""

from sparkwright.project.inventory.variables import DEFAULTS
from sparkwright.project.recipe.recipe import Recipe, load, load_valid, names, serve_port
from sparkwright.project.recipe.scope import PINNED_NAMES, RECIPE_NAMES, scope

__all__ = ["DEFAULTS", "PINNED_NAMES", "RECIPE_NAMES", "Recipe", "load", "load_valid", "names", "scope", "serve_port"]
