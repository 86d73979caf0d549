"""The interface of links to hosts, and the selection of a link's kind."""

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

#: kind of requests that a command sends: short questions, plans, or plans whose tasks use the Docker Engine. It only determines
#: what the host's runner imports while the laptop is still planning.
RequestKind = Literal["light", "plan", "engine"]
#: how long the planning thread may hold the GIL while a connecting thread waits for it: with Python's default of 5 ms, every
#: one of the handshake's many short steps would wait that long
SWITCH_INTERVAL_S = 0.0005


class Link(Protocol):
    """A connection to a host that lasts for a whole command."""

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """Send a request to the host's runner and yield its events. Raises Unreachable if the answer is cut off."""

    def ready(self) -> None:
        """Wait for the connection. Raises Unreachable."""

    def close(self) -> None:
        """Close the connection. Runs on the host continue."""


def open_link(host: Host, need: RequestKind = "engine") -> Link:
    """Return the link for a host's `connection`, which starts connecting in the background.

    Args:
        need: kind of requests that will follow.
    """
    if host.connection == "ssh":
        from sparkwright.remote.ssh import ssh_config

        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ssh_config.start_resolving(host)  # a separate process, while this one imports
        with fast_paramiko_import():
            from sparkwright.remote.ssh.ssh_link import SshLink

        return SshLink(host, need)
    from sparkwright.remote.local import LocalLink

    return LocalLink(host)


# A faster import of Paramiko, which saves a fifth of the import time of a connection.
#
# On import, Paramiko asks importlib.metadata for its own version. That imports the mail, zip and CSV modules and reads a
# 10 KB file, although the name of the dist-info folder next to the package already holds the version.

METADATA_MODULE = "importlib.metadata"


@contextmanager
def fast_paramiko_import() -> Iterator[None]:
    """Look up Paramiko's version by the name of its folder, for the duration of the block that imports it."""
    if METADATA_MODULE in sys.modules:
        yield
        return
    stand_in = ModuleType(METADATA_MODULE)

    def load_real(name: str) -> Any:
        if sys.modules.get(METADATA_MODULE) is stand_in:
            del sys.modules[METADATA_MODULE]
        return getattr(importlib.import_module(METADATA_MODULE), name)

    stand_in.version = lambda name: version_from_folder(name) or load_real("version")(name)  # type: ignore[attr-defined]
    stand_in.__getattr__ = load_real  # type: ignore[method-assign]
    sys.modules[METADATA_MODULE] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(METADATA_MODULE) is stand_in:
            del sys.modules[METADATA_MODULE]


def version_from_folder(name: str) -> str:
    """Return the version of a package from its NAME-VERSION.dist-info folder; empty unless there is exactly one."""
    package = sys.modules.get(name)
    siblings = [Path(path).parent for path in package.__path__] if package is not None else []
    dist_infos = [path.name for folder in siblings for path in folder.glob(f"{name}-*.dist-info")]
    return dist_infos[0].removesuffix(".dist-info").removeprefix(f"{name}-") if len(dist_infos) == 1 else ""
