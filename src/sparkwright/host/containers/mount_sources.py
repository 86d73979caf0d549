"""Mount sources that a container could replace.

Docker follows links in the source of a bind mount at each start. If a container can write to a parent folder of the source, it
can place a link there and exit, and its next start mounts the link's target, for example the host's root folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.containers import containers
from sparkwright.host.containers.inspection import is_ours
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders
from sparkwright.protocol.container import ContainerSpec

#: links that the kernel follows before it gives up
MAX_LINKS = 40
FIX = "Mount folders that are not nested, or mount the outer one read-only (`:ro`)."


def container_sources(container: Mapping[str, Any]) -> dict[Path, bool]:
    """Return a map from each host path that a container mounts to whether the container may write to it."""
    host_config = container.get("HostConfig") or {}
    sources: dict[Path, bool] = {}
    for source, writable in (
        *map(_parse_bind, host_config.get("Binds") or ()),
        *map(_parse_mount, host_config.get("Mounts") or ()),
    ):
        if source.startswith("/"):
            sources[Path(source)] = sources.get(Path(source), False) or writable
    return sources


def _parse_bind(text: str) -> tuple[str, bool]:
    source, _, rest = text.partition(":")
    return source, "ro" not in rest.partition(":")[2].split(",")


def _parse_mount(row: Mapping[str, Any]) -> tuple[str, bool]:
    is_bind = row.get("Type") == "bind"
    return str(row.get("Source") or "") if is_bind else "", not row.get("ReadOnly")


def find_nested(container: Mapping[str, Any]) -> list[tuple[Path, Path]]:
    """Return a container's nested mount sources as (inner, outer) pairs in which it may write to the outer one.

    Compares paths only; links are not resolved.
    """
    sources = container_sources(container)
    return [
        (inner, outer)
        for outer, writable in sources.items()
        for inner in sources
        if writable and inner != outer and inner.is_relative_to(outer)
    ]


def refuse_unsafe_spec(context: Context, spec: ContainerSpec) -> None:
    """Raise Refused if a recipe's mount source, or one of our own folders, is below a folder that a container can write to."""
    own_sources = dict.fromkeys(own_folders.share_and_state(context.machine.home), False)
    _refuse_replaceable_sources(
        context, spec.name, own_sources | container_sources({"HostConfig": {"Binds": spec.volumes}})
    )


def refuse_unsafe_container(context: Context, container: Mapping[str, Any]) -> None:
    """Raise Refused if a container's mount source could have been replaced, or is a link in one of our folders.

    Called before each start. A container from an earlier version with nested mounts may start: its folders are replaced first
    (see `compile_caches.prepare_start`), and its restart policy stays `no` (see `restart_policy`).
    """
    sources, nested_sources = container_sources(container), {inner for inner, _ in find_nested(container)}
    other_sources = {source: writable for source, writable in sources.items() if source not in nested_sources}
    _refuse_replaceable_sources(context, containers.name_of(container), other_sources)
    for source in other_sources:
        if reason := _untrusted_reason(context, source):
            raise Refused(f"{source} is not mounted: {reason}.", fix="Remove it, and run the command again.")


def restart_policy(container: Mapping[str, Any], requested: str) -> str:
    """Return the restart policy for a container: `no` if its mounts are nested, else the requested one."""
    return "no" if find_nested(container) else requested


def _refuse_replaceable_sources(context: Context, name: str, sources: Mapping[Path, bool]) -> None:
    writers = {source: name for source, may_write in sources.items() if may_write}
    writers |= _writable_by_own_containers(context, name)
    real_paths = {Path(os.path.realpath(source)): (source, writer) for source, writer in writers.items()}
    for source in sources:
        for folder in _lookup_folders(source):
            for parent in (folder, *folder.parents):
                if parent in real_paths:
                    outer, writer = real_paths[parent]
                    reason = f"{source} is inside {outer}, where {writer} could replace it with a link"
                    raise Refused(f"{name} is not started: {reason}.", fix=FIX)


def _writable_by_own_containers(context: Context, name: str) -> dict[Path, str]:
    """Return the folders that sparkwright's containers may write to, with the containers' names.

    Empty if Docker cannot be queried.

    Args:
        name: a container name of the server whose own containers are left out.
    """
    suffixes = (containers.PREVIOUS_SUFFIX, containers.INTERIM_SUFFIX, containers.REPLACEMENT_SUFFIX)
    server = next((name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix)), name)
    own_names = {server, *(server + suffix for suffix in suffixes)}
    try:
        rows = context.docker().api.containers(all=True)
    except SparkwrightError:
        return {}
    return {
        Path(mount["Source"]): containers.name_of(row)
        for row in rows
        if is_ours(row) and containers.name_of(row) not in own_names
        for mount in row.get("Mounts") or ()
        if mount.get("Type") == "bind" and mount.get("RW") and str(mount.get("Source")).startswith("/")
    }


def _lookup_folders(path: Path) -> Iterator[Path]:
    """Yield every folder in which the kernel looks up a name while resolving a path, including links."""
    folder, remaining_parts, link_count = Path("/"), [*path.parts[1:]], 0
    while remaining_parts and link_count <= MAX_LINKS:
        name = remaining_parts.pop(0)
        if name == "..":
            folder = folder.parent
            continue
        yield folder
        try:
            target = (folder / name).readlink()
        except (OSError, ValueError):
            folder = folder / name
            continue
        link_count += 1
        folder = Path("/") if target.is_absolute() else folder
        remaining_parts[:0] = [part for part in target.parts if part != "/"]


def _untrusted_reason(context: Context, source: Path) -> str:
    """Return the reason why a source below one of our own folders cannot be trusted, else "".

    It must be a plain file or folder. Each folder is opened from its parent, and no link is followed. Sources elsewhere are
    not checked.
    """
    parents = own_folders.share_and_state(context.machine.home)
    top = next((path for path in parents if source.is_relative_to(path)), None)
    if top is None or not top.is_dir():
        return ""
    handle = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owners = {os.geteuid(), os.fstat(handle).st_uid}
        parts = source.relative_to(top).parts
        for n, name in enumerate(parts, 1):
            child = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            os.close(handle)
            handle, status = child, os.fstat(child)
            if not (stat.S_ISDIR(status.st_mode) or (n == len(parts) and stat.S_ISREG(status.st_mode))):
                return f"{name} is a link or special file" if n == len(parts) else f"{name} is a link or not a folder"
            if n < len(parts) and (status.st_uid not in owners or status.st_mode & 0o022):
                return f"other users may write to its folder {name}"
    except OSError as error:
        return f"{error.strerror}"
    finally:
        os.close(handle)
    return ""
