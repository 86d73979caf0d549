"""One table of what a container is made of: it drives create, compare and diff. An option that is one value of HostConfig is in
it by its field in protocol/container.py alone; one that the engine says back otherwise has a row of its own here.

Each option knows how the spec says it, how the engine says it back, and why a difference matters. Compared is what the spec
asks for, over what the image brings (environment, labels, entrypoint, command): a value equal to the image's own is no
difference. What is empty is not asked for. Lists whose order has no meaning are compared without it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engines import engine
from sparkwright.host.images.image_names import digests_of, proves
from sparkwright.protocol.container import DOCKER_OPTIONS, KEPT, OWN_LABELS, ContainerSpec, DockerOption
from sparkwright.protocol.result import Change
from sparkwright.trust import hidden
from sparkwright.trust.image_name import digest_of

Inspect = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """wanted: from the spec; None when it does not ask. found: from the container's and its image's inspect, for this spec.

    why: what a difference means. key, asked: its name in the engine's HostConfig and the value to create with, for one that
    stands there.
    """

    field: str
    wanted: Callable[[ContainerSpec], Any]
    found: Callable[[Inspect, Inspect, ContainerSpec], Any]
    why: str = ""
    key: str = ""
    asked: Callable[[ContainerSpec], Any] = lambda spec: None


def _host(
    field: str,
    key: str,
    asked: Callable[[ContainerSpec], Any],
    alike: Callable[[Any], Any] = lambda v: v,
    why: str = "",
) -> Option:
    """An option of HostConfig. alike: brings what is asked for and what is found (None: nothing is) into one spelling."""

    def wanted(spec: ContainerSpec) -> Any:
        value = asked(spec)
        return None if value is None else alike(value)

    return Option(
        field, wanted, lambda container, image, spec: alike(container["HostConfig"].get(key)), why, key, asked
    )


def port_bindings(ports: tuple[str, ...]) -> dict[str, list[dict[str, str]]]:
    """ "127.0.0.1:8000:8000/tcp" as the engine keeps it."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in ports:
        *address, host, inside = port.rsplit(":", 2) if port.count(":") > 1 else ["", *port.split(":")]
        key = inside if "/" in inside else f"{inside}/tcp"
        bindings.setdefault(key, []).append({"HostIp": address[0].strip("[]") if address else "", "HostPort": host})
    return bindings


def gpu_request(gpus: str) -> list[dict[str, Any]]:
    """ "all" or "device=0,1" as the engine's device requests; "" is none."""
    if not gpus:
        return []
    ids = sorted(gpus[7:].split(",")) if gpus.startswith("device=") else None
    count = 0 if ids else -1 if gpus == "all" else int(gpus)
    return [{"Driver": "", "Count": count, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}}]


def ulimits(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """ "memlock": "-1" or "soft:hard" as the engine keeps it."""
    bounds = ((name, *text.partition(":")) for name, text in sorted(limits.items()))
    return [{"Name": name, "Soft": int(soft), "Hard": int(hard or soft)} for name, soft, _, hard in bounds]


def _env(pairs: list[str] | None) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in pairs or ())


def _own(
    found: Mapping[str, str], wanted: Mapping[str, str], image: Inspect, inherited: Mapping[str, str]
) -> dict[str, str]:
    """What of a container's variables or labels is asked for, or not its image's. Of an image that is gone nothing is known."""
    return {k: v for k, v in found.items() if k in wanted or (image and inherited.get(k) != v)}


def _own_env(container: Inspect, image: Inspect, spec: ContainerSpec) -> dict[str, str]:
    inherited = _env((image.get("Config") or {}).get("Env"))
    return _own(_env(container["Config"].get("Env")), spec.env, image, inherited)


def _own_labels(container: Inspect, image: Inspect, spec: ContainerSpec) -> dict[str, str]:
    inherited = (image.get("Config") or {}).get("Labels") or {}
    found = _own(container["Config"].get("Labels") or {}, spec.labels, image, inherited)
    return {k: v for k, v in found.items() if not k.startswith(OWN_LABELS)}


def _gpus(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [
        {**row, "Driver": "", "Options": {}, "DeviceIDs": sorted(row.get("DeviceIDs") or ()) or None}
        for row in rows or ()
    ]


def _sorted_bindings(found: Mapping[str, Any] | None) -> dict[str, list[dict[str, str]]]:
    rows = {
        k: [{"HostIp": b.get("HostIp") or "", "HostPort": b["HostPort"]} for b in v or []]
        for k, v in (found or {}).items()
    }
    return {k: sorted(v, key=lambda b: (b["HostIp"], b["HostPort"])) for k, v in rows.items()}


def _volumes(binds: list[str] | None) -> list[str]:
    """Mounts in one spelling: no slash at the end of a folder, no `rw`, which is meant without it."""
    found = []
    for bind in binds or ():
        parts = bind.split(":")
        folders = [part.rstrip("/") or "/" for part in parts[:2]]
        modes = sorted(mode for mode in ",".join(parts[2:]).split(",") if mode not in ("", "rw"))
        found.append(":".join([*folders, *([",".join(modes)] if modes else [])]))
    return sorted(found)


def _ulimits(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return sorted(rows or (), key=lambda row: str(row["Name"]))


def _plain(name: str, option: DockerOption) -> Option:
    """The row of a field that says all there is to say of its option."""
    flag, read = name.replace("_", "-"), operator.attrgetter(name)
    return _host(flag, option.key, lambda s: (option.kept(read(s)) or None) if read(s) else None, why=option.why)


#: every option but image, entrypoint, command and restart policy, which have rules of their own here and in container.py
OPTIONS: tuple[Option, ...] = (
    _host("gpus", "DeviceRequests", lambda s: gpu_request(s.gpus), _gpus, "without it the engine finds no GPU"),
    *(_plain(name, option) for name, option in DOCKER_OPTIONS.items() if option.key),
    _host("ports", "PortBindings", lambda s: port_bindings(s.ports), _sorted_bindings, "where clients find the server"),
    _host("volumes", "Binds", lambda s: list(s.volumes), _volumes),
    Option("env", lambda s: dict(s.env), _own_env),
    Option("labels", lambda s: dict(s.labels), _own_labels),
    _host("ulimits", "Ulimits", lambda s: ulimits(s.ulimits), _ulimits),
)


def differences(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    """Every option that is not as the spec asks for, with the command's flags one by one. Pure.

    image: the inspect of the image that the container was made from; empty when it is gone. A server that somebody started
    otherwise may have secrets in its command and its environment: they are not shown.
    """
    changes = _image(spec, image or {"Id": container.get("Image")}) + _entrypoint(spec, container, image)
    for option in OPTIONS:
        wanted, found = option.wanted(spec), option.found(container, image, spec)
        if wanted is not None and wanted != found:
            changes.append(Change(option.field, found, wanted, option.why))
    changes += _command(spec, container, image) + _server_key(spec, container)
    return [replace(c, before=hidden.value(c.field, c.before), after=hidden.value(c.field, c.after)) for c in changes]


def key_fingerprint(container: Inspect) -> str:
    """The fingerprint of the key that a container was made with, from the name of the file it mounts; empty without one."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    key = engine.of_labels((container.get("Config") or {}).get("Labels")).key
    source = next((str(one.get("Source")) for one in mounts if key and one.get("Target") == key.mount), "")
    return source.rpartition("/")[2].rpartition(".")[0].rpartition("-")[2]


def create_arguments(spec: ContainerSpec) -> dict[str, Any]:
    """The engine's own words for `POST /containers/create`; the restart policy is `no` until it is earned."""
    entrypoint = list(spec.entrypoint or ())
    host = {option.key: asked for option in OPTIONS if (asked := option.asked(spec)) is not None}
    host["RestartPolicy"] = {"Name": "no", "MaximumRetryCount": 0}
    body: dict[str, Any] = {
        "Image": spec.image,
        "Cmd": [*entrypoint[1:], *spec.command],
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())],
        "Labels": dict(spec.labels),
        "ExposedPorts": {key: {} for key in port_bindings(spec.ports)},
        "HostConfig": host,
    }
    return {**body, "Entrypoint": entrypoint[:1]} if entrypoint else body


def _image(spec: ContainerSpec, image: Inspect) -> list[Change]:
    """By the Ids that the lock allows for the digest; without them by the digest that the engine noted. Never by a tag."""
    wanted = digest_of(spec.image)
    digests = digests_of(image)
    if not wanted or proves(image, wanted, spec.image_ids):
        return []
    before = digests[0] if digests else image.get("Id", "unknown")
    return [Change("image", before, wanted, "the lock pins another digest")]


def words_of(container: Inspect) -> list[str]:
    """All that the container runs: its entrypoint and its command are one list of words to the kernel."""
    config = container["Config"]
    return [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]


def _first_words(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """The entrypoint that it should have: the spec's, else the image's; of an image that is gone, the one it has.

    An empty first word is docker's `--entrypoint ""`: none, not even the image's.
    """
    if spec.entrypoint:
        return list(spec.entrypoint if spec.entrypoint[0] else spec.entrypoint[1:])
    config: Inspect = image.get("Config") or {} if image else container["Config"]
    return list(config.get("Entrypoint") or ())


def _entrypoint(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    first = _first_words(spec, container, image)
    if words_of(container)[: len(first)] == first:
        return []
    return [Change("entrypoint", container["Config"].get("Entrypoint"), list(spec.entrypoint or ()) or None)]


def _command(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    first, words = _first_words(spec, container, image), words_of(container)
    as_wanted = words[: len(first)] == first
    found = words[len(first) :] if as_wanted else list(container["Config"].get("Cmd") or ())
    wanted = list(spec.command)
    if not wanted and not spec.entrypoint:
        wanted = list((image.get("Config") or {}).get("Cmd") or ()) if image else found
    if wanted == found:
        return []
    before, after = flags_of(found), flags_of(wanted)
    names = [*after, *(name for name in before if name not in after)]
    changes = [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
    return changes or [Change("command", " ".join(found), " ".join(wanted), "the same flags in another order")]


def _server_key(spec: ContainerSpec, container: Inspect) -> list[Change]:
    """Whether the key is the one that is wanted. A change says no more of it: neither the key nor its fingerprint."""
    found, wanted = key_fingerprint(container), spec.server_key.removeprefix(KEPT)
    if found == wanted and bool(found) == bool(spec.server_key):
        return []
    after = ("changed" if found else "set") if spec.server_key else None
    return [Change("server_key", "set" if found else None, after, "clients need the new key")]


def flags_of(words: list[str]) -> dict[str, str]:
    """Flags with their values; a bare switch has "" as its value."""
    found: dict[str, str] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return found
