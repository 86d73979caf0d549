"""The container a recipe asks for, as data. What create, compare, the recipe's schema and the docker run script make of a field
stands beside it: one more option of `docker run` is one more field with `_option`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparkwright.trust import container_words as words

#: labels that start so are sparkwright's own: no recipe sets them, and they are never compared
OWN_LABELS = "sparkwright."
#: how a spec names the key of its server: a secret that comes with the run, or a key that the host keeps, by its fingerprint
GIVEN, KEPT = "given:", "kept:"

#: marks a container that the lab started; its value is the arm
LAB_LABEL = "sparkwright.bench"


@dataclass(frozen=True, slots=True)
class DockerOption:
    """flag: its word for `docker run`. key: its name in the engine's HostConfig; empty for one with rules of its own, in
    host/containers/container_options.py and project/recipe/models.py. about: for the recipe's schema. why_not: why a text is
    refused; empty when it is not. kept: as the engine keeps it. why: what a difference means.
    """

    flag: str
    key: str = ""
    about: str = ""
    why_not: Callable[[str], str] = lambda text: ""
    kept: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value
    why: str = ""


def _option(flag: str, default: Any = "", **more: Any) -> Any:
    """A field that is an option of `docker run`; the empty value asks for nothing. default: a value, or `dict`."""
    way = "default_factory" if default is dict else "default"
    return field(**{way: default}, metadata={"option": DockerOption(flag, **more)})


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What `docker run` is told, in its order and its words.

    image: "repo:tag@sha256:...". restart: the policy it earns when verification has passed. gpus: "all", "device=0,1"
    or "" for none. ports: "8000:8000" or "127.0.0.1:8000:8000".
    volumes: "/host/folder:/container/folder[:ro]", ~ already expanded. ulimits: "memlock": "-1" or "soft:hard".
    command: what follows the image. entrypoint: None leaves the image's. server_key: "" for none, else
    GIVEN or KEPT and its name; never the key.
    """

    name: str
    image: str
    restart: str = "unless-stopped"
    gpus: str = _option("--gpus", "all")
    ipc: str = _option(
        "--ipc",
        "host",
        key="IpcMode",
        about="docker's --ipc: host, private, shareable or none; empty: Docker's default",
        why_not=words.ipc,
        why="workers share memory through it",
    )
    shm_size: str = _option(
        "--shm-size",
        key="ShmSize",
        about='docker\'s --shm-size, e.g. "64gb"',
        why_not=words.size,
        kept=words.size_bytes,
    )
    ports: tuple[str, ...] = _option("-p", ())
    volumes: tuple[str, ...] = _option("-v", ())
    env: dict[str, str] = _option("-e", dict)
    ulimits: dict[str, str] = _option("--ulimit", dict)
    labels: dict[str, str] = _option("--label", dict)
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
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**given)

    def docker_options(self) -> Iterator[tuple[str, str]]:
        """The options of `docker run` with their values; the script adds name, restart policy, entrypoint and the key's mount."""
        for name, option in DOCKER_OPTIONS.items():
            value = getattr(self, name)
            if isinstance(value, dict):
                value = tuple(f"{key}={text}" for key, text in sorted(value.items()))
            elif name == "gpus" and "," in value:
                value = f'"{value}"'  # docker splits a list of devices that is not in quotes
            yield from ((option.flag, text) for text in (value if isinstance(value, tuple) else (value,)) if text)


#: the options by their fields, in the fields' order
DOCKER_OPTIONS: dict[str, DockerOption] = {
    one.name: one.metadata["option"] for one in fields(ContainerSpec) if "option" in one.metadata
}


def locked_ids(entry: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The Ids that an image of a lock's entry may have, of every platform and store; empty when the entry has no manifests."""
    manifests = (entry or {}).get("manifests") or ()
    return tuple(one[key] for one in manifests for key in ("config", "digest"))
