"""All modules by the name that a playbook gives them: the file's name in one of the folders here. Imported on demand."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

from sparkwright.host.module import Module

HERE = Path(__file__).parent


def _found() -> dict[str, str]:
    """Return the import path of each module by its name: SUBJECT/NAME.py below this folder is the module NAME."""
    paths = (path.relative_to(HERE).with_suffix("") for path in HERE.glob("*/**/*.py") if path.stem != "__init__")
    return {path.name: ".".join((str(__package__), *path.parts)) for path in paths}


WHERE = _found()
NAMES: tuple[str, ...] = tuple(sorted(WHERE))

#: modules that never use the Docker Engine: a playbook of these alone needs no Docker client
WITHOUT_ENGINE = frozenset(
    {
        "barrier",
        "command",
        "copy_key",
        "fabric",
        "fail",
        "file",
        "host_settings",
        "link_rate",
        "package",
        "systemd_unit",
        "template",
        "user_group",
    }
)


@functools.cache
def load(name: str) -> type[Module[Any]]:
    """Return the module's class: `docker_image` is `DockerImage` in image/docker_image.py. Raises KeyError for an
    unknown name."""
    file = importlib.import_module(WHERE[name])
    found: type[Module[Any]] = getattr(file, "".join(word.capitalize() for word in name.split("_")))
    return found
