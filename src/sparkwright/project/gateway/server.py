"""A server behind a gateway: a host and the recipe that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkwright.project import recipe
from sparkwright.project.inventory.host import Host


@dataclass(frozen=True)
class Server:
    """A member of the group that answers requests, and its recipe."""

    host: Host
    recipe: recipe.Recipe

    @property
    def port(self) -> int:
        return recipe.serve_port(self.host, self.recipe)

    @property
    def published(self) -> set[int]:
        """Every port that it takes on its host."""
        others = self.recipe.file.container.ports[1:]
        return {self.port, *(int(text.split(":")[-2]) for text in others if text.split(":")[-2].isdigit())}

    @property
    def where(self) -> str:
        """ "file:line" of the setting that makes it serve this recipe."""
        return self.host.set_at.get("recipe", self.host.where)


def load(project: Path, host: Host) -> Server:
    """Load the recipe of a host and return the server. Raises Refused."""
    return Server(host, recipe.load(project, str(host.recipe), named_at=host.set_at.get("recipe", "")))
