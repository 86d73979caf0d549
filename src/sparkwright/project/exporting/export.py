"""The input of every export format: a recipe, its pins, and its container."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project import recipe as recipes
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import Recipe
from sparkwright.protocol.container import OWN_LABELS, ContainerSpec
from sparkwright.trust.image_name import Name, pinned

#: placeholder for the home folder of the user that starts it; a shell or compose expands it
HOME = "~"


@dataclass
class Export:
    """A recipe to export."""

    recipe: Recipe
    #: the container, with its volumes below HOME
    spec: ContainerSpec
    #: the image, pinned
    image: str
    #: the model's commit; "" while it is not pinned
    commit: str
    #: what the format cannot express
    notes: list[str] = field(default_factory=list)


def of(recipe: Recipe, pins: Mapping[str, Any]) -> Export:
    """Return the export of a recipe. Raises Refused for a recipe with files of its own.

    Args:
        pins: the lock's entries, {"image": ..., "model": ...}.
    """
    file = recipe.file
    notes = []
    if file.server_key is not None:
        notes.append("server_key is left out: give the server its key in its own way, and keep it out of the file")
    if file.files:
        fix = "Put what they say into the image, or into flags."
        raise Refused(
            "the recipe has `files`, which no other format carries.", where=recipe.source.where("files"), fix=fix
        )
    host = Host("host", "host", home=HOME)
    alone = file.model_copy(update={"server_key": None, "parallel": None})
    names = recipes.scope(host, "user", dataclasses.replace(recipe, file=alone), pins)
    spec = ContainerSpec.from_json(names["container"])
    labels = {name: text for name, text in spec.labels.items() if not name.startswith(OWN_LABELS)}
    digest = str((pins.get("image") or {}).get("digest", ""))
    commit = str((pins.get("model") or {}).get("commit", ""))
    name = Name.parse(file.image)
    spec = dataclasses.replace(spec, labels=labels, caches="")
    return Export(recipe, spec, pinned(name.by_tag, digest), commit, notes)
