"""The containers that sparkwright owns on this host, and their roles.

Whether a container is ours depends on the labels it was created with, never on its name, because anyone can choose any
name. The owner label is derived from this machine and this state folder, so neither an image nor a container of another
user's sparkwright has it.

Earlier releases set no owner label. A container without one is ours if its id was recorded when it was verified or
stopped, if it mounts a folder that only sparkwright creates, or if it has one of the older labels and its image
does not (docs/decisions/0036-identity-of-containers.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.host.containers import containers
from sparkwright.host.containers.containers import INTERIM_SUFFIX, PREVIOUS_SUFFIX, REPLACEMENT_SUFFIX
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, stopped_server, verified_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import (
    CLUSTER_LABEL,
    LAB_LABEL,
    MEMBERS_LABEL,
    OWNER_LABEL,
    RANK_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    SERVER_LABEL,
)
from sparkwright.visible import one_line

#: roles of a container: a server, its interim server, a gateway, and short-lived helpers
SERVER, INTERIM_SERVER, GATEWAY, HELPER = "server", "interim", "gateway", "helper"
#: full names of the labels that earlier releases set. Comparing only their prefix made `host.clean` remove foreign containers
LEGACY_LABELS = frozenset((LAB_LABEL, CLUSTER_LABEL, RANK_LABEL, MEMBERS_LABEL)) | {
    engine.ENGINE_LABEL,
    engine.DESCRIPTION_LABEL,
    engine.TASK_LABEL,
}
#: number of hexadecimal digits in the owner label's value
OWNER_DIGITS = 32
#: folders that only sparkwright creates and mounts, below its folder in ~/.local/share
SHARE_FOLDERS = ("caches", "compile-caches")
#: the same below its state folder
STATE_FOLDERS = ("server_keys", "recipe_files", "gateway")


@dataclass(frozen=True, slots=True)
class Identity:
    """The role of one of our containers, and its server."""

    #: SERVER, INTERIM_SERVER, GATEWAY or HELPER
    role: str
    #: the container name from the recipe, or the gateway's; empty for a helper
    server: str

    @property
    def name(self) -> str:
        """The container's name while it serves."""
        return self.server + INTERIM_SUFFIX if self.role == INTERIM_SERVER else self.server


def owner_id(context: Context) -> str:
    """Return the value of the owner label for this user on this machine, the same for every run.

    It is derived, not stored, so containers are still recognized after the state folder has been removed and created again.
    """
    try:
        machine_id = context.machine.path("/etc/machine-id").read_text().strip()
    except OSError:
        machine_id = ""
    return hashlib.sha256(f"sparkwright\0{machine_id}\0{context.state.path}".encode()).hexdigest()[:OWNER_DIGITS]


def build_labels(context: Context, role: str, server: str) -> dict[str, str]:
    own_labels = {OWNER_LABEL: owner_id(context), ROLE_LABEL: role, RUN_LABEL: context.run_id}
    return own_labels | ({SERVER_LABEL: server} if server else {})


def identify(context: Context, container: Mapping[str, Any]) -> Identity | None:
    """Return a container's identity, or None if it is not ours.

    Args:
        container: inspect data, which may be empty.
    """
    if not container:
        return None
    labels = _labels_of(container)
    if labels.get(OWNER_LABEL) == owner_id(context):
        return Identity(labels.get(ROLE_LABEL, ""), labels.get(SERVER_LABEL, ""))
    if (recorded_identity := _recorded_identities(context).get(str(container["Id"]))) is not None:
        return recorded_identity
    return None if OWNER_LABEL in labels else _identify_legacy(context, container)


def is_ours(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if a container belongs to this user's sparkwright on this host."""
    return identify(context, container) is not None


def is_kept_previous(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if a container is a server or a gateway that was stopped for its replacement and renamed NAME-previous."""
    identity, name = identify(context, container), containers.name_of(container) if container else ""
    if identity is None or not name.endswith(PREVIOUS_SUFFIX) or identity.name == name:
        return False
    return not container["State"]["Running"] or (container["HostConfig"]["RestartPolicy"]["Name"] or "no") == "no"


def is_unstarted_replacement(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if a container was created to replace a server, and has not been started or renamed yet."""
    identity = identify(context, container)
    has_replacement_name = (
        identity is not None and containers.name_of(container) == identity.server + REPLACEMENT_SUFFIX
    )
    return has_replacement_name and container["State"]["Status"] == "created"


def has_original_name(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if a container is ours and still has the name that it was created with."""
    identity = identify(context, container)
    return identity is not None and identity.name == containers.name_of(container)


def require_ours(context: Context, container: Mapping[str, Any]) -> str:
    """Return the id of a container that is about to be changed. Raises Refused if it is not ours."""
    if not is_ours(context, container):
        raise Refused(
            f"container {describe_holder(context, container)}, and is left as it is.", fix=fix_to_free_name(container)
        )
    return str(container["Id"])


def describe_holder(context: Context, container: Mapping[str, Any]) -> str:
    """Describe a container's name and owner."""
    name, image = containers.name_of(container), one_line(str(container["Config"].get("Image") or "?"), max_chars=120)
    identity = identify(context, container)
    if identity is not None and is_unstarted_replacement(context, container):
        return f"{name} was created to replace {identity.server}, by a run that did not finish, and never started"
    if identity is not None and identity.name != name:
        return f"{name} is the {'gateway' if identity.role == GATEWAY else 'server'} {identity.name}, renamed by hand"
    if identity is not None:
        return f"{name} is {'a gateway' if identity.role == GATEWAY else 'the server of another recipe'} of this host"
    if OWNER_LABEL in _labels_of(container):
        return f"{name} ({image}) belongs to the sparkwright of another user, or of another state folder"
    return f"{name} ({image}) was not started by sparkwright"


def fix_to_free_name(container: Mapping[str, Any]) -> str:
    """Return the fix that frees a container's name, stopping the container if it is running."""
    name = containers.name_of(container)
    stop_command = f"docker stop {name} && " if container["State"]["Running"] else ""
    return f"On the host: `{stop_command}docker rename {name} {name}-kept`, if it is not needed."


def list_by_label(context: Context, role: str, server: str) -> list[dict[str, Any]]:
    """Return the inspect data of the containers created for a server, whatever their current names."""
    own_labels = build_labels(context, role, server)
    names = (OWNER_LABEL, ROLE_LABEL, SERVER_LABEL)
    return _list_filtered(context, label=[f"{name}={own_labels[name]}" for name in names if name in own_labels])


def list_unstarted_replacements(context: Context) -> list[dict[str, Any]]:
    """Return the inspect data of our containers that were created to replace a server and never started."""
    labels = [f"{OWNER_LABEL}={owner_id(context)}", f"{ROLE_LABEL}={SERVER}"]
    created_containers = _list_filtered(context, label=labels, status="created")
    return [container for container in created_containers if is_unstarted_replacement(context, container)]


def _list_filtered(context: Context, **filters: Any) -> list[dict[str, Any]]:
    rows = context.docker().api.containers(all=True, filters=filters)
    inspected_containers = (containers.inspect(context.docker(), row["Id"]) for row in rows)
    return [container for container in inspected_containers if container is not None]


def recorded_ids(state: StateFolder) -> set[str]:
    """Return the ids of the containers that one server's records name as verified, or as stopped by an interrupted run."""
    return {*_verified_identities(state, SERVER), *_stopped_identities(state)}


# -- containers of earlier releases --------------------------------------------------------------------------------------


def _recorded_identities(context: Context) -> dict[str, Identity]:
    """Return the identities of the containers recorded when they were verified or before a run stopped them, by id."""
    identities: dict[str, Identity] = {}
    for state in context.state.servers():
        identities |= {**_stopped_identities(state), **_verified_identities(state, SERVER)}
    return identities | _verified_identities(StateFolder(context.state.path / "gateway"), GATEWAY)


def _verified_identities(state: StateFolder, role: str) -> dict[str, Identity]:
    states = (*verified_states.load_earlier(state), verified_states.load_last(state))
    return {
        verified.container_id: Identity(role, verified.spec["name"]) for verified in states if verified.container_id
    }


def _stopped_identities(state: StateFolder) -> dict[str, Identity]:
    previous = stopped_server.load(state)
    return {previous["id"]: Identity(SERVER, previous["name"])} if previous.get("name") else {}


def _identify_legacy(context: Context, container: Mapping[str, Any]) -> Identity | None:
    """Return the identity of a container without an owner label, from the labels and mounts that earlier releases used."""
    name = containers.name_of(container)
    server = name.removesuffix(PREVIOUS_SUFFIX)
    folders = set(_own_mount_folders(context, container))
    if "gateway" in folders:
        return Identity(GATEWAY, server)
    if not folders and not _has_own_labels(context, container):
        return None
    if name.endswith(INTERIM_SUFFIX):
        return Identity(INTERIM_SERVER, name.removesuffix(INTERIM_SUFFIX))
    return Identity(SERVER, server)


def _own_mount_folders(context: Context, container: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of sparkwright's folders that contain a mount source of a container."""
    share, state = own_folders.share_and_state(context.machine.home)
    names_by_folder = {share / name: name for name in SHARE_FOLDERS} | {state / name: name for name in STATE_FOLDERS}
    host_config = container.get("HostConfig") or {}
    sources = [str(mount.get("Source") or "") for mount in host_config.get("Mounts") or ()]
    sources += [str(bind).partition(":")[0] for bind in host_config.get("Binds") or ()]
    for source in map(Path, sources):
        if ".." not in source.parts:
            yield from (name for folder, name in names_by_folder.items() if folder in source.parents)


def _has_own_labels(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if a container has one of our labels that its image does not have."""
    legacy_labels = {name: value for name, value in _labels_of(container).items() if name in LEGACY_LABELS}
    if not legacy_labels:
        return False
    image = containers.image_of(context.docker(), dict(container))
    return bool(image) and any(_labels_of(image).get(name) != value for name, value in legacy_labels.items())


def _labels_of(inspected: Mapping[str, Any]) -> dict[str, str]:
    return (inspected.get("Config") or {}).get("Labels") or {}
