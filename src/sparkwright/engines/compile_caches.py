"""Compile caches of an engine.

They contain code compiled for one image, one model and one set of arguments. They are kept on the host so that a new container
does not compile again, and are never used for another combination.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: mount point in the container for its cache folder on the host
CACHE_MOUNT = "/var/cache/sparkwright"
#: the host's folder for all caches, below the user's home; see host/containers/compile_caches.py
HOST_FOLDER = ".local/share/sparkwright/compile-caches"
#: below the folder of a key: LIVE_FOLDER/NAME/CACHE_FOLDER is mounted at CACHE_MOUNT in the container NAME
LIVE_FOLDER, CACHE_FOLDER = "live", "cache"


@dataclass(frozen=True, slots=True)
class CompileCaches:
    """The compile caches of one engine."""

    #: environment variables, each set to this folder below CACHE_MOUNT
    variables: Mapping[str, str]
    #: path suffixes of the default cache folders; a recipe that mounts such a folder manages its caches itself
    default_suffixes: tuple[str, ...]
    #: flags that do not affect the compiled code
    irrelevant_flags: frozenset[str]
    #: folders of the container that no variable can move, each with the name of its folder on the host
    fixed_folders: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that move every cache below CACHE_MOUNT."""
        return {name: f"{CACHE_MOUNT}/{folder}" for name, folder in self.variables.items()}

    def sources(self, live_folder: str) -> dict[str, str]:
        """Return the host folders that a container mounts, by mount point.

        No folder is inside another: a container that can write to the parent of a mounted folder could replace that folder with a link,
        and the next start would mount the link's target.

        live_folder: their parent folder on the host, see `live_folder_path`.
        """
        return {
            CACHE_MOUNT: f"{live_folder}/{CACHE_FOLDER}",
            **{folder: f"{live_folder}/{name}" for folder, name in self.fixed_folders.items()},
        }

    def is_managed_by_recipe(self, env: Mapping[str, str], mounted_folders: Iterable[str]) -> bool:
        """Return True if a recipe manages the caches: it sets one of the variables, or mounts a folder over a default location.

        mounted_folders: mount points in the container.
        """
        return any(name in env for name in self.variables) or any(map(self._is_cache_folder, mounted_folders))

    def _is_cache_folder(self, folder: str) -> bool:
        path = folder.rstrip("/")
        parents = (suffix.rpartition("/")[0] for suffix in self.default_suffixes)
        is_within = any(f"{suffix}/" in f"{path}/" for suffix in self.default_suffixes)
        return (
            is_within or path in ("/root", CACHE_MOUNT) or any(parent and path.endswith(parent) for parent in parents)
        )

    def relevant_flags(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags that may affect the compiled code."""
        return {name: value for name, value in flags.items() if name not in self.irrelevant_flags}


def live_folder_path(home: str, key: str, container: str) -> str:
    """Return the parent of a container's cache folders; it is never mounted, and no two containers share it.

    home: the home folder of the host's user. key: see `compile_cache_key`. container: its name.
    """
    return f"{home}/{HOST_FOLDER}/{key}/{LIVE_FOLDER}/{container}"


def compile_cache_key(inputs: Mapping[str, Any]) -> str:
    """Return the name of the folder for code compiled from these inputs; different inputs give different names."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def find_cache_variables(environment: Mapping[str, str]) -> set[str]:
    """Return the variables of a container that point below CACHE_MOUNT."""
    return {name for name, value in environment.items() if value.startswith(f"{CACHE_MOUNT}/")}
