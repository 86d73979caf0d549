"""Render HTML pages, which share the layout page.html.j2 and the style sheet style.css.

Each page is a single file without scripts that loads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sparkwright import program

TEMPLATE_FOLDER = Path(__file__).parent


def render(template: str, filters: dict[str, Any] | None = None, **names: Any) -> str:
    """Render a template of this folder. `filters` are additional Jinja filters."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters or {})
    return environment.get_template(template).render(program=program.name(), **names)
