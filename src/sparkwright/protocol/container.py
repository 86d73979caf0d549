"""The container a recipe asks for, as data: the docker run script and the `container` module are both made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: labels that start so are sparkwright's own: no recipe sets them, and they are never compared
OWN_LABELS = "sparkwright."
#: how a spec names the key of its server: a secret that comes with the run, or a key that the host keeps, by its fingerprint
GIVEN, KEPT = "given:", "kept:"

#: marks a container that the lab started; its value is the arm
LAB_LABEL = "sparkwright.bench"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What `docker run` is told, in its order and its words.

    image: "repo:tag@sha256:...". restart: the policy it earns when verification has passed. gpus: "all", "device=0,1"
    or "" for none. shm_size: docker's own spelling, "64gb". ports: "8000:8000" or "127.0.0.1:8000:8000".
    volumes: "/host/folder:/container/folder[:ro]", ~ already expanded. ulimits: "memlock": "-1" or "soft:hard".
    command: what follows the image. entrypoint: None leaves the image's. server_key: "" for none, else
    GIVEN or KEPT and its name; never the key.
    """

    name: str
    image: str
    restart: str = "unless-stopped"
    gpus: str = "all"
    ipc: str = "host"
    shm_size: str = ""
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    ulimits: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    image_ids: tuple[str, ...] = ()
    server_key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `from_json` is its inverse. Without a key it reads as that of a release that knew none."""
        return {name: value for name, value in asdict(self).items() if name != "server_key" or value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ContainerSpec:
        """The spec again. Raises TypeError for a key that is none of its own."""
        tuples = ("ports", "volumes", "command", "entrypoint", "image_ids")
        fields: dict[str, Any] = {k: tuple(v) if k in tuples and v is not None else v for k, v in data.items()}
        return cls(**fields)


def locked_ids(entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The Ids that an image of a lock's entry may have, of every platform and store; empty when the entry has no manifests."""
    manifests = (entry or {}).get("manifests") or ()
    return tuple(one[key] for one in manifests for key in ("config", "digest"))
