"""A recipe, and the container it asks for on a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.engine import flags
from sparkwright.errors import Refused
from sparkwright.inventory.host import Host
from sparkwright.plan.container import ContainerSpec, locked_ids
from sparkwright.recipe.models import RecipeFile
from sparkwright.userfiles import document
from sparkwright.userfiles.checked import check, nearest


@dataclass(frozen=True)
class Recipe:
    """name: its file's name. file: what stands in it. source: the document, for lines in messages."""

    name: str
    file: RecipeFile
    source: document.Document

    @property
    def image(self) -> str:
        return self.file.image

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return flags.served_name(self.file.vllm, self.file.model.mount)

    def to_json(self) -> dict[str, Any]:
        """The recipe as playbooks see it."""
        return {"name": self.name, **self.file.model_dump(mode="python"), "served_name": self.served_name}


def names(project: Path) -> list[str]:
    """The recipes of a project."""
    return sorted(path.stem for path in (project / "recipes").glob("*.yml"))


def load(project: Path, name: str) -> Recipe:
    """Read recipes/NAME.yml. Raises Refused with file and line, or naming the nearest recipe."""
    path = project / "recipes" / f"{name}.yml"
    if not path.is_file():
        raise Refused(f"no recipe {name!r}.", fix=nearest(name, names(project)))
    read = document.load(path)
    file = check(RecipeFile, read, read.data if read.data is not None else {}, at=())
    if flags.MODEL in file.vllm:
        raise Refused(
            "`vllm.model` is given by `model.mount`.", where=read.where("vllm", flags.MODEL), fix="Leave it out."
        )
    if file.ascend is not None and file.platform != "ascend":
        raise Refused("`ascend` is for `platform: ascend`.", where=read.where("ascend"), fix="Leave it out.")
    return Recipe(name, file, read)


def serve_port(host: Host, recipe: Recipe) -> int:
    """The port of the host on which the server answers."""
    if host.serve_port:
        return host.serve_port
    return (
        int(recipe.file.container.ports[0].split(":")[-2])
        if recipe.file.container.ports
        else flags.port(recipe.file.vllm)
    )


def container_spec(
    recipe: Recipe, host: Host, home: str, image_entry: Mapping[str, Any] | None, command: tuple[str, ...]
) -> ContainerSpec:
    """What docker run is told for this recipe on this host. Without a lock entry the image is not pinned yet.

    command: the words after the image.
    """
    file, box = recipe.file, recipe.file.container
    digest = f"@{image_entry['digest']}" if image_entry else ""
    volumes = [f"{file.model.dir}:{file.model.mount}", *box.volumes]
    return ContainerSpec(
        name=box.name,
        image=f"{file.image}{digest}",
        restart=box.restart,
        gpus=box.gpus,
        ipc=box.ipc,
        shm_size=box.shm_size,
        ports=tuple(_published(box.ports, host.serve_port)),
        volumes=tuple(_at_home(volume, home) for volume in volumes),
        env=dict(box.env),
        ulimits=dict(box.ulimits),
        labels=dict(box.labels),
        entrypoint=tuple(box.entrypoint) if box.entrypoint is not None else None,
        command=command,
        image_ids=locked_ids(image_entry),
    )


def _published(ports: list[str], serve_port: int | None) -> list[str]:
    """The recipe's ports, the first published where the host wants it."""
    if not ports or serve_port is None:
        return ports
    parts = ports[0].split(":")
    return [":".join([*parts[:-2], str(serve_port), parts[-1]]), *ports[1:]]


def _at_home(volume: str, home: str) -> str:
    return home + volume[1:] if volume.startswith("~/") else volume
