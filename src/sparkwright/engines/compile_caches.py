"""Compile caches of an engine: their location in the container, and what their contents depend on.

A new container starts without them, unless the folders are kept on the host. They hold code that the engine runs, made for one
image, one model and one set of arguments; nothing else ever gets them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: mount point in the container of the folder that the host keeps for it
MOUNT = "/var/cache/sparkwright"
#: the host's folder for the caches, below the user's home; see host/containers/compile_caches.py
FOLDER = ".local/share/sparkwright/compile-caches"
#: below the folder of a key: LIVE/NAME/CACHE is mounted at MOUNT in the container NAME
LIVE, CACHE = "live", "cache"


@dataclass(frozen=True, slots=True)
class CompileCaches:
    """The compile caches of one engine."""

    #: environment variables, each with the folder below MOUNT that it is set to
    variables: Mapping[str, str]
    #: ends of the folders that hold the caches without these variables: a recipe that mounts one keeps its caches itself
    usual: tuple[str, ...]
    #: flags that change nothing of what is compiled
    indifferent: frozenset[str]
    #: folders of the container that no variable moves, each with the name of its own folder on the host
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that move every cache below MOUNT."""
        return {name: f"{MOUNT}/{folder}" for name, folder in self.variables.items()}

    def sources(self, live: str) -> dict[str, str]:
        """Return the folders of the host that a container mounts, by mount point.

        They lie side by side: a container that could write to the folder above one of them could put a link in its place, and its
        next start would mount whatever the link names.

        Args:
            live: The folder above them on the host, see `live_folder`.
        """
        return {MOUNT: f"{live}/{CACHE}", **{place: f"{live}/{name}" for place, name in self.places.items()}}

    def kept_elsewhere(self, env: Mapping[str, str], mounted: Iterable[str]) -> bool:
        """Return True if a recipe keeps the caches itself: it sets one of the variables, or mounts a folder over their usual
        places.

        mounted: folders of the container.
        """
        return any(name in env for name in self.variables) or any(map(self._holds, mounted))

    def _holds(self, folder: str) -> bool:
        inside = folder.rstrip("/")
        above = (item.rpartition("/")[0] for item in self.usual)
        within = any(f"{item}/" in f"{inside}/" for item in self.usual)
        return within or inside in ("/root", MOUNT) or any(item and inside.endswith(item) for item in above)

    def that_matter(self, flags: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags that may affect what is compiled."""
        return {name: value for name, value in flags.items() if name not in self.indifferent}


def live_folder(home: str, key: str, container: str) -> str:
    """Return the folder above a container's cache folders for a key; no container mounts the folder itself.

    Args:
        home: The home folder of the host's user.
        key: See `key_of`.
        container: The name of the container. Two containers never share a folder.
    """
    return f"{home}/{FOLDER}/{key}/{LIVE}/{container}"


def key_of(made_from: Mapping[str, Any]) -> str:
    """Return the name of the folder for what was compiled from these inputs; any other value gives another folder."""
    text = json.dumps(made_from, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def set_by_us(environment: Mapping[str, str]) -> set[str]:
    """Return the variables of a container that point below MOUNT."""
    return {name for name, value in environment.items() if value.startswith(f"{MOUNT}/")}
