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
MOST_LINKS = 40
FIX = "Mount folders that do not lie in one another, or the outer one read-only (`:ro`)."


def of_container(container: Mapping[str, Any]) -> dict[Path, bool]:
    """Return the host's paths that a container mounts, with True for writable ones.

    Args:
        container: Its inspect.
    """
    host = container.get("HostConfig") or {}
    found: dict[Path, bool] = {}
    for source, writable in (*map(_bind, host.get("Binds") or ()), *map(_mount, host.get("Mounts") or ())):
        if source.startswith("/"):
            found[Path(source)] = found.get(Path(source), False) or writable
    return found


def _bind(text: str) -> tuple[str, bool]:
    source, _, rest = text.partition(":")
    return source, "ro" not in rest.partition(":")[2].split(",")


def _mount(row: Mapping[str, Any]) -> tuple[str, bool]:
    bind = row.get("Type") == "bind"
    return str(row.get("Source") or "") if bind else "", not row.get("ReadOnly")


def nested(container: Mapping[str, Any]) -> list[tuple[Path, Path]]:
    """Return the mounts of a container below another mount to which it may write, by path alone. Pure.

    Returns:
        Pairs: the inner source and the outer one.
    """
    found = of_container(container)
    return [
        (inner, outer)
        for outer, writable in found.items()
        for inner in found
        if writable and inner != outer and inner.is_relative_to(outer)
    ]


def refuse_spec(context: Context, spec: ContainerSpec) -> None:
    """Raise Refused if a recipe's mount source, or a folder of sparkwright, is below a folder that a container can write to."""
    own = dict.fromkeys(own_folders.of(context.machine.home), False)
    _refuse(context, spec.name, own | of_container({"HostConfig": {"Binds": spec.volumes}}))


def refuse(context: Context, container: Mapping[str, Any]) -> None:
    """Raise Refused if a container's mount source could have been replaced, or is a link in one of our folders.

    Called before each start. A container of an earlier version with nested mounts may start: its folders are new then (see
    `compile_caches.before_start`), and Docker never restarts it by itself (see `policy`).
    """
    found, inside = of_container(container), {inner for inner, _ in nested(container)}
    apart = {source: writable for source, writable in found.items() if source not in inside}
    _refuse(context, str(container.get("Name")).lstrip("/"), apart)
    for source in apart:
        if why := _why_not_ours(context, source):
            raise Refused(f"{source} is not mounted: {why}.", fix="Remove it, and run the command again.")


def policy(container: Mapping[str, Any], wanted: str) -> str:
    """Return the restart policy for a container: `no` if its mounts are nested, else the wanted one."""
    return "no" if nested(container) else wanted


def _refuse(context: Context, name: str, sources: Mapping[Path, bool]) -> None:
    writable = {source: name for source, may_write in sources.items() if may_write} | _of_our_containers(context, name)
    real = {Path(os.path.realpath(source)): (source, user) for source, user in writable.items()}
    for source in sources:
        for folder in _looked_up_in(source):
            if outer := next((real[parent] for parent in (folder, *folder.parents) if parent in real), None):
                where = f"{source} lies in {outer[0]}, where {outer[1]} can write"
                raise Refused(f"{name} is not started: {where}, and so replace it by a link.", fix=FIX)


def _of_our_containers(context: Context, name: str) -> dict[Path, str]:
    """Return the folders that sparkwright's containers may write to, with the containers' names.

    Containers of the server itself are left out. Empty if the engine cannot be queried.

    Args:
        name: of the server's container.
    """
    endings = (containers.PREVIOUS, containers.INTERIM, containers.REPLACEMENT)
    server = next((name.removesuffix(ending) for ending in endings if name.endswith(ending)), name)
    own = {server, *(server + ending for ending in endings)}
    try:
        rows = context.docker().api.containers(all=True)
    except SparkwrightError:
        return {}
    return {
        Path(mount["Source"]): row["Names"][0].lstrip("/")
        for row in rows
        if is_ours(row) and row["Names"][0].lstrip("/") not in own
        for mount in row.get("Mounts") or ()
        if mount.get("Type") == "bind" and mount.get("RW") and str(mount.get("Source")).startswith("/")
    }


def _looked_up_in(path: Path) -> Iterator[Path]:
    """Yield every folder in which the kernel looks up a name while resolving a path, including links."""
    at, left, links = Path("/"), [*path.parts[1:]], 0
    while left and links <= MOST_LINKS:
        name = left.pop(0)
        if name == "..":
            at = at.parent
            continue
        yield at
        try:
            target = (at / name).readlink()
        except (OSError, ValueError):
            at = at / name
            continue
        links += 1
        at = Path("/") if target.is_absolute() else at
        left[:0] = [part for part in target.parts if part != "/"]


def _why_not_ours(context: Context, source: Path) -> str:
    """Return the reason why a source below one of sparkwright's folders is not a plain file or folder, else "".

    Each folder is opened from its parent, and no link is followed. Sources elsewhere are not checked.
    """
    top = next((path for path in own_folders.of(context.machine.home) if source.is_relative_to(path)), None)
    if top is None or not top.is_dir():
        return ""
    at = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        owners = {os.geteuid(), os.fstat(at).st_uid}
        parts = source.relative_to(top).parts
        for n, name in enumerate(parts, 1):
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at, found = below, os.fstat(below)
            if not (stat.S_ISDIR(found.st_mode) or (n == len(parts) and stat.S_ISREG(found.st_mode))):
                return f"{name} is a link, or no folder" if n < len(parts) else f"{name} is a link, or of another kind"
            if n < len(parts) and (found.st_uid not in owners or found.st_mode & 0o022):
                return f"others may write to its folder {name}"
    except OSError as error:
        return f"{error.strerror}"
    finally:
        os.close(at)
    return ""
