"""The templates that commands render themselves: the docker run script and the client snippet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.playbook.blame import Blame
from sparkwright.protocol import expressions


def rendered(project: Path, name: str, names: Mapping[str, Any]) -> str:
    """Render templates/NAME, the project's or the shipped one.

    Raises Refused, with the line of the template, for a mistake in it.
    """
    path = shipped_files.path_of(project, f"templates/{name}")
    try:
        return str(expressions.render(document.text_of(path), names))
    except expressions.ExpressionError as error:
        raise Refused(f"{error}.", where=Blame.text(path)(error.line)) from None
