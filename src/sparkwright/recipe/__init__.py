"""Recipes: one way to serve one model, and what that means on one host."""

from sparkwright.recipe.recipe import Recipe, container_spec, load, names, serve_port
from sparkwright.recipe.scope import DEFAULTS, PINNED_NAMES, RECIPE_NAMES, home_of, scope
from sparkwright.recipe.serving import Serving, serving

__all__ = [
    "DEFAULTS",
    "PINNED_NAMES",
    "RECIPE_NAMES",
    "Recipe",
    "Serving",
    "container_spec",
    "home_of",
    "load",
    "names",
    "scope",
    "serve_port",
    "serving",
]
