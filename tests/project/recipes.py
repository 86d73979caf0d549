"""Recipes for tests: write one, load it, and render its script."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host
from sparkwright.protocol import expressions

TOP = Path(__file__).parents[2]


def load_text(folder: Path, text: str, name: str = "one") -> recipe.Recipe:
    """Write recipes/NAME.yml and load it."""
    path = folder / f"recipes/{name}.yml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return recipe.load(folder, name)


def resolve_variables(
    loaded_recipe: recipe.Recipe, locked: Mapping[str, Any] | None = None, **host: Any
) -> dict[str, Any]:
    """Return the variables that templates may use on the host spark1. locked: entries of spark.lock. host: fields of the host."""
    return recipe.scope(Host("spark1", "spark1", **host), "ops", loaded_recipe, locked or {})


def render_script(variables: Mapping[str, Any]) -> str:
    return str(expressions.render((TOP / "templates/docker-run.sh.j2").read_text(), variables))
