"""The interface of a link to a host, and the choice of its kind."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret

#: the kind of a command's requests: a short question, a plan, a plan with tasks that use the Docker Engine. It decides only the
#: imports of the runner there while the laptop still plans.
Need = Literal["light", "plan", "engine"]
#: how long the planning thread may keep the interpreter while a connection's thread wants it: with Python's own 5 ms each of
#: the handshake's many short steps waits that long
SWITCH_S = 0.0005


class Link(Protocol):
    """A connection to a host, kept for the length of a command."""

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """Send a request to the host's runner and yield its events. Raises Unreachable if the answer breaks off."""

    def ready(self) -> None:
        """Wait for the connection. Raises Unreachable."""

    def close(self) -> None:
        """Close the connection. Runs on the host continue."""


def open_link(host: Host, need: Need = "engine") -> Link:
    """Return the link for a host's `connection`. Connecting begins at once, in the background.

    need: the kind of requests to come.
    """
    if host.connection == "ssh":
        from sparkwright.remote.ssh import ssh_config

        sys.setswitchinterval(SWITCH_S)
        ssh_config.begin(host)  # a process of its own, while this one imports
        with paramiko_by_folder():
            from sparkwright.remote.ssh.ssh_link import SshLink

        return SshLink(host, need)
    from sparkwright.remote.local import LocalLink

    return LocalLink(host)


# A faster import of paramiko: it saves a connection a fifth of its imports.
#
# Paramiko asks importlib.metadata for its own version on import. That imports the readers of mail, zip and CSV, and
# reads a file of 10 KB, while the name of the folder that pip made beside it holds the version.

NAME = "importlib.metadata"


@contextmanager
def paramiko_by_folder() -> Iterator[None]:
    """Within the block that imports Paramiko, look up its version by the folder's name; everything else is looked up as usual."""
    if NAME in sys.modules:
        yield
        return
    stand_in = ModuleType(NAME)

    def real(name: str) -> Any:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)

    stand_in.version = lambda name: version_of_folder(name) or real("version")(name)  # type: ignore[attr-defined]
    stand_in.__getattr__ = real  # type: ignore[method-assign]
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]


def version_of_folder(name: str) -> str:
    """Return the version of a package that is being imported, by the one folder NAME-VERSION.dist-info beside it; empty for
    none."""
    package = sys.modules.get(name)
    siblings = [Path(path).parent for path in package.__path__] if package is not None else []
    found = [path.name for folder in siblings for path in folder.glob(f"{name}-*.dist-info")]
    return found[0].removesuffix(".dist-info").removeprefix(f"{name}-") if len(found) == 1 else ""
