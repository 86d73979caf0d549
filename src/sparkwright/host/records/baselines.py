"""A host's baselines, each under the key that makes measurements comparable."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.http import Http
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.measure import smoke
from sparkwright.measure.smoke import Baseline
from sparkwright.protocol.started_with import options
from sparkwright.trust.image_name import digest_of

FOLDER = "baselines"
#: the members, in a cluster's key: its texts do not depend on them, but its throughput does
MEMBERS = "members"


@dataclass(frozen=True, slots=True)
class Nearest:
    """A baseline with another key, and the differing fields."""

    baseline: Baseline
    differs: tuple[str, ...]


@dataclass(frozen=True)
class Baselines:
    """The baselines of a host."""

    #: the host's state folder
    state: StateFolder

    def read(self, key: Mapping[str, Any]) -> Baseline | None:
        """Return the baseline of this key; None without one."""
        kept = self.state.read(name_of(FOLDER, key))
        return Baseline.from_json(kept) if kept else None

    def write(self, key: Mapping[str, Any], baseline: Baseline, about: Mapping[str, Any]) -> None:
        """Record a baseline.

        Args:
            about: information that is not part of the key: driver, versions.
        """
        self.state.write(name_of(FOLDER, key), {**baseline.to_json(), "key": dict(key), "about": dict(about)})

    def about(self, key: Mapping[str, Any]) -> dict[str, Any]:
        """Return the information recorded with a baseline; empty without one.

        Its kernel path, the GPU's power and utilization.
        """
        kept = self.state.read(name_of(FOLDER, key)) or {}
        return dict(kept.get("about") or {})

    def add(self, key: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Record more information about a baseline, which itself stays unchanged; nothing without one."""
        kept = self.state.read(name_of(FOLDER, key))
        if kept:
            self.state.write(name_of(FOLDER, key), {**kept, "about": {**(kept.get("about") or {}), **about}})

    def remove(self, key: Mapping[str, Any]) -> None:
        """Remove the baseline of a server that turned out to generate nonsense."""
        self.state.remove(name_of(FOLDER, key))

    def nearest(self, key: Mapping[str, Any]) -> Nearest | None:
        """Return the baseline of the same model whose key differs least; None without one."""
        found: list[Nearest] = []
        for path in sorted((self.state.path / FOLDER).glob("*.json")):
            kept = self.state.read(f"{FOLDER}/{path.stem}") or {}
            other = kept.get("key") or {}
            differs = tuple(name for name in key if other.get(name) != key[name])
            if differs and other.get("model") == key.get("model"):
                found.append(Nearest(Baseline.from_json(kept), differs))
        return min(found, key=lambda nearest: len(nearest.differs), default=None)


def name_of(folder: str, key: Mapping[str, Any]) -> str:
    """Return the name in the state folder for a key's record."""
    return f"{folder}/{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def key_of(given: Mapping[str, Any], machine: Machine, http: Http) -> dict[str, Any]:
    """Return the key that makes measurements comparable: host, model, digest, arguments, environment, prompts, client.

    The order of arguments does not count, nor does the tag before a digest.

    Args:
        http: of the measured engine.
    """
    key = {name: _canonical(value) for name, value in given.items()}
    return {
        **key,
        "host": _host(machine),
        "speculation": smoke.speculates(http, given),
        "prompts": smoke.PROMPT_SET,
        "client": smoke.CLIENT,
    }


def _host(machine: Machine) -> str:
    """Return the machine's id; its host name if it has none."""
    try:
        return machine.path("/etc/machine-id").read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def _canonical(value: Any) -> Any:
    if isinstance(value, str) and "@sha256:" in value:
        return digest_of(value)
    return sorted(options(value)) if isinstance(value, list | tuple) else value
