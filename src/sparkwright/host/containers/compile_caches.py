"""Folders on the host for the engines' compile caches, one per key; see engines/compile_caches.py.

~/.local/share/sparkwright/compile-caches/KEY/live/NAME/FOLDER    mounted by the container NAME; may contain root-owned files
                                             /frozen/FOLDER       the copy made when a server was verified
                                             /aside/FOLDER        the last cache that was moved aside, for inspection
~/.local/state/sparkwright/compile_caches/KEY.json                see CacheRecord

A container mounts each FOLDER but none of their parents, so it cannot replace a FOLDER. Only this user has access to KEY (0700),
so the folders below it can be writable for any user in the container. Each start begins with a copy of the frozen cache and
nothing else: no leftovers of a failed start, and no files written after the verification (docs/decisions/0035).

Earlier versions used caches/KEY/files with nested mounts. Those folders are no longer used.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.compile_caches import CACHE_FOLDER, CACHE_MOUNT, HOST_FOLDER, LIVE_FOLDER, live_folder_path
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import container_files, containers, mount_sources
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust import private
from sparkwright.trust.names import PATH_COMPONENT, require_match

RECORDS_FOLDER = "compile_caches"
FROZEN_FOLDER, ASIDE_FOLDER = "frozen", "aside"
#: folder that earlier versions used, below the user's home
OLD_FOLDER = ".local/share/sparkwright/caches"
KEY_PATTERN = re.compile(r"[0-9a-f]{32}")
OPEN_FOLDER_MODE = 0o777
#: disk space that must remain free after a copy
MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """The stored record of one key's cache."""

    key: str
    container: str = ""  # name of the container last created with this cache
    image: str = ""
    image_id: str = ""
    model: str = ""
    commit: str = ""
    proved: bool = False  # a server that was started with it has been verified
    warm: bool = False  # the last start began with a cache that was not empty
    container_id: str = ""  # id of the container last started with it
    used_s: float = 0.0  # time of the last use, seconds since the epoch
    why_aside: str = ""  # why the cache in ASIDE_FOLDER was moved there
    frozen: str = ""  # digest of the copy in FROZEN_FOLDER (see container_files); empty if there is no copy


def folder(context: Context, key: str) -> Path:
    """Return the folder of a key. Raises Failed for an invalid key."""
    if not KEY_PATTERN.fullmatch(key):
        raise Failed("the compile cache key is invalid.", fix="Run the command again with this version.")
    return context.machine.home / HOST_FOLDER / key


def list_keys(context: Context) -> list[str]:
    """Return the keys that have a folder."""
    return _list_keys_in(context.machine.home / HOST_FOLDER)


def _list_keys_in(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if KEY_PATTERN.fullmatch(path.name)) if parent.is_dir() else []


def read_record(state: StateFolder, key: str) -> CacheRecord:
    """Return a key's record; an empty one if its file is missing or damaged."""
    stored = state.read(f"{RECORDS_FOLDER}/{key}") or {}
    fields = {name: value for name, value in stored.items() if name in CacheRecord.__slots__}
    return CacheRecord(**{**fields, "key": key})


def mounted_key(container: Mapping[str, Any]) -> str:
    """Return the key of the cache that a container mounts; empty if it mounts none."""
    return _find_mount(container)[0]


def _find_mount(container: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key of a container's cache and the container's original name; both empty if it mounts no cache."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    live_paths = (_parse_live_path(str(mount.get("Source"))) for mount in mounts if mount.get("Target") == CACHE_MOUNT)
    return next((live_path for live_path in live_paths if live_path[0]), ("", ""))


def keys_in_use(context: Context) -> dict[str, str]:
    """Return the keys of the caches that running or stopped containers mount, each with the container's name.

    Raises:
        Failed: Docker cannot be queried.
    """
    return {key: name for (key, _), name in _find_mounting_containers(context).items()}


def _find_mounting_containers(context: Context) -> dict[tuple[str, str], str]:
    """Return the names of the containers that mount a cache, keyed by the cache's key and the live folder's name."""
    return {
        live_path: containers.name_of(row)
        for row in context.docker().api.containers(all=True)
        for live_path in map(_parse_live_path, _row_sources(row))
        if live_path[0]
    }


def keys_possibly_in_use(context: Context) -> dict[str, str]:
    """Return the same as `keys_in_use`, or every key if Docker cannot be queried."""
    try:
        return keys_in_use(context)
    except SparkwrightError:
        return dict.fromkeys(list_keys(context), "a container, possibly (Docker did not answer)")


def _row_sources(row: Mapping[str, Any]) -> Iterator[str]:
    return (str(mount.get("Source")) for mount in row.get("Mounts") or ())


def _parse_live_path(source: str) -> tuple[str, str]:
    """Return the key and the container's name in the path of a mounted cache folder; both empty for any other path."""
    parent, _, folder_name = source.rstrip("/").rpartition("/")
    top, separator, rest = parent.rpartition(f"/{HOST_FOLDER}/")
    key, live, name = (*rest.split("/"), "", "", "")[:3]
    is_live_path = (
        folder_name == CACHE_FOLDER
        and separator
        and top
        and live == LIVE_FOLDER
        and KEY_PATTERN.fullmatch(key)
        and PATH_COMPONENT.fullmatch(name)
    )
    return (key, name) if is_live_path else ("", "")


# -- a container's cache -----------------------------------------------------------------------------------------------


def prepare_container(context: Context, spec: ContainerSpec, image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional "Mounts" and "Env" for `POST /containers/create`; empty if the container has no caches."""
    caches = engine.from_labels(spec.labels).caches
    if not spec.caches or caches is None:
        return {}
    record = read_record(context.state, spec.caches)
    server = spec.name.removesuffix(containers.INTERIM_SUFFIX)  # an interim server starts from its server's cache
    _write_record(context, replace(record, container=server, image=spec.image, image_id=str(image["Id"])))
    try:
        sources = caches.sources(str(_ensure_live_folder(context, spec.caches, spec.name)))
        for source in sources.values():
            _ensure_open_folder(Path(source))
    except OSError as error:
        context.note(f"{spec.name} gets no compile cache: {error}")
        return {}
    mounts = [
        {"Type": "bind", "Source": source, "Target": target, "BindOptions": {"CreateMountpoint": True}}
        for target, source in sources.items()
    ]
    variables = {name: value for name, value in caches.environment.items() if name not in spec.env}
    return {"Mounts": mounts, "Env": [f"{name}={value}" for name, value in sorted(variables.items())]}


def _ensure_live_folder(context: Context, key: str, name: str) -> Path:
    """Return the parent of the folders that a container mounts; create it if missing."""
    folder(context, key)  # refuses an invalid key
    require_match(PATH_COMPONENT, name, "the container's name")
    return private.create_folder(Path(live_folder_path(str(context.machine.home), key, name)))


def prepare_start(context: Context, container: Mapping[str, Any]) -> None:
    """Replace the cache of a container that is about to start with a copy of the verified cache, or with an empty one.

    Raises:
        Failed: The previous contents cannot be moved away.
    """
    _replace_old_folders(context, container)
    key, name = _find_mount(container)
    if not key:
        return
    try:
        _prepare_start(context, container, key, name)
    except OSError as error:
        key_folder = folder(context, key)
        raise Failed(f"cannot move the compile cache in {key_folder} out of the way: {error.strerror}.") from None
    container_files.try_to_empty_trash(context)


def _prepare_start(context: Context, container: Mapping[str, Any], key: str, name: str) -> None:
    record = read_record(context.state, key)
    if not record.proved:
        if _has_contents(folder(context, key) / FROZEN_FOLDER) or _has_contents(
            _ensure_live_folder(context, key, name)
        ):
            reason = "no server that started with it has been verified"
            if _move_aside(context, key, name, reason):
                context.note(f"the compile cache was moved aside: {reason}; this start compiles from scratch.")
        record = read_record(context.state, key)
    is_warm = _refill_live_folder(context, container, key, name)
    container_id = str(container["Id"])
    _write_record(context, replace(record, proved=False, warm=is_warm, container_id=container_id, used_s=time.time()))


def save_verified(context: Context, container: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> None:
    """Keep a copy of a verified server's cache, so that its next start is warm.

    A cache that cannot be copied is not kept: the next start is cold, and a note gives the reason.

    Args:
        model: the model that the container serves.
    """
    key, name = _find_mount(container)
    if not key:
        return
    record = read_record(context.state, key)
    model_id, commit = (str((model or {}).get(field) or "") for field in ("id", "commit"))
    updated_record = replace(record, used_s=time.time(), model=model_id or record.model, commit=commit or record.commit)
    try:
        digest = _freeze(context, key, name)
    except (OSError, SparkwrightError) as error:
        context.note(f"the compile cache is not kept, and the next start compiles from scratch: {error}")
        _write_record(context, replace(updated_record, proved=False, frozen=""))
        return
    _write_record(context, replace(updated_record, proved=True, frozen=digest))


def _freeze(context: Context, key: str, name: str) -> str:
    """Copy the folders that a container mounts. Returns the digest of the copy."""
    key_folder, live_folder = folder(context, key), _ensure_live_folder(context, key, name)
    new_copy = key_folder / f".{FROZEN_FOLDER}"
    copy_result = _copy_tree(context, live_folder, new_copy)
    if copy_result.unreadable_count:
        container_files.discard(context, new_copy)
        for path in sorted(live_folder.iterdir()):
            container_files.make_readable(context, path)
        copy_result = _copy_tree(context, live_folder, new_copy)
    if (key_folder / FROZEN_FOLDER).exists():
        container_files.discard(context, key_folder / FROZEN_FOLDER)
    new_copy.rename(key_folder / FROZEN_FOLDER)
    return copy_result.digest


def _copy_tree(context: Context, source: Path, target: Path) -> container_files.CopyResult:
    """Copy a folder to a new one. If it raises CopyLimitExceeded or OSError, nothing is left behind."""
    if target.exists():
        container_files.discard(context, target)
    max_bytes = context.machine.free_bytes(target.parent) - MIN_FREE_BYTES
    try:
        return container_files.copy(source, target, max_bytes)
    except (OSError, SparkwrightError):
        if target.exists():
            container_files.discard(context, target)
        raise


def _refill_live_folder(context: Context, container: Mapping[str, Any], key: str, name: str) -> bool:
    """Replace a container's cache with a copy of the frozen one, or with empty folders. Returns True if it is not empty."""
    key_folder, live_folder = folder(context, key), _ensure_live_folder(context, key, name)
    expected_digest = read_record(context.state, key).frozen
    container_files.discard(context, live_folder)
    is_warm = False
    if expected_digest and (key_folder / FROZEN_FOLDER).is_dir():
        try:
            copy_result = _copy_tree(context, key_folder / FROZEN_FOLDER, live_folder)
            is_warm = copy_result.digest == expected_digest and copy_result.file_count > 0
            reason = "" if copy_result.digest == expected_digest else "it has changed since it was verified"
        except (OSError, SparkwrightError) as error:
            reason = str(error)
        if reason:
            context.note(f"the compile cache is not used, and this start compiles from scratch: {reason}")
        if reason and live_folder.exists():
            container_files.discard(context, live_folder)
    live_folder = _ensure_live_folder(context, key, name)
    for source in mount_sources.container_sources(container):
        if source.is_relative_to(live_folder):
            _ensure_open_folder(source)
    return is_warm


def is_warm_start(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if the last start of this container began with a cache that was not empty."""
    key = mounted_key(container)
    record = read_record(context.state, key) if key else CacheRecord("")
    return record.warm and record.container_id == container.get("Id")


def move_aside(context: Context, container: Mapping[str, Any], reason: str) -> Path | None:
    """Move the cache of a stopped container to ASIDE_FOLDER for inspection; its next start is cold.

    Returns:
        The folder; None if it cannot be moved, which a note reports.
    """
    key, name = _find_mount(container)
    return _move_aside(context, key, name, reason)


def _move_aside(context: Context, key: str, name: str, reason: str) -> Path | None:
    key_folder = folder(context, key)
    try:
        for obsolete_folder in (key_folder / ASIDE_FOLDER, key_folder / FROZEN_FOLDER):
            if obsolete_folder.exists():
                container_files.discard(context, obsolete_folder)
        live_folder = _ensure_live_folder(context, key, name)
        live_folder.rename(key_folder / ASIDE_FOLDER)
        for path in sorted((key_folder / ASIDE_FOLDER).iterdir()):
            _ensure_open_folder(_ensure_live_folder(context, key, name) / path.name)  # the container has it mounted
    except (OSError, Failed) as error:
        context.note(f"cannot move the compile cache in {key_folder} aside: {error}")
        return None
    _write_record(context, replace(read_record(context.state, key), proved=False, frozen="", why_aside=reason))
    return key_folder / ASIDE_FOLDER


def _has_contents(parent: Path) -> bool:
    """Return True if a folder contains anything but empty subfolders, or is not readable."""
    try:
        return any(not path.is_dir() or next(path.iterdir(), None) is not None for path in parent.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True  # owned by root and not readable: it has contents


def _ensure_open_folder(path: Path) -> None:
    """Create a folder, if it is missing, that any user in the container can write to."""
    if not path.exists():
        path.mkdir(exist_ok=True)
        path.chmod(OPEN_FOLDER_MODE)


def _write_record(context: Context, record: CacheRecord) -> None:
    context.state.write(f"{RECORDS_FOLDER}/{record.key}", asdict(record))


def remove_record(context: Context, key: str) -> None:
    """Remove the record of a key whose folder is gone."""
    context.state.remove(f"{RECORDS_FOLDER}/{key}")


# -- unused caches -------------------------------------------------------------------------------------------------------


def discard_unused(context: Context) -> None:
    """Move unused folders to the trash: live folders of removed containers, and unmounted folders of earlier versions.

    Raises:
        Failed: Docker cannot be queried.
        OSError: A folder cannot be moved.
    """
    names_by_mount = _find_mounting_containers(context)
    for key in list_keys(context):
        live_folder = folder(context, key) / LIVE_FOLDER
        for path in sorted(live_folder.iterdir()) if live_folder.is_dir() else ():
            if (key, path.name) not in names_by_mount:
                container_files.discard(context, path)
    for path, container_name in old_folders(context).items():
        if not container_name:
            container_files.discard(context, path)
    with contextlib.suppress(OSError):
        (context.machine.home / OLD_FOLDER).rmdir()


def old_folders(context: Context) -> dict[Path, str]:
    """Return the folders left by earlier versions, each with the container that mounts it, or "".

    Raises:
        Failed: There are old folders, and Docker cannot be queried.
    """
    parent = context.machine.home / OLD_FOLDER
    keys = _list_keys_in(parent)
    rows = context.docker().api.containers(all=True) if keys else ()
    names_by_key = {_parse_old_key(source): containers.name_of(row) for row in rows for source in _row_sources(row)}
    return {parent / key: names_by_key.get(key, "") for key in keys}


def folders_in_use(context: Context) -> list[Path]:
    """Return the cache folders that containers need to start again; all folders if Docker cannot be queried."""
    folders = [folder(context, key) for key in keys_possibly_in_use(context)]
    try:
        folders += [path for path, container_name in old_folders(context).items() if container_name]
    except SparkwrightError:
        folders.append(context.machine.home / OLD_FOLDER)
    return [path for path in folders if path.exists()]


def _parse_old_key(source: str) -> str:
    """Return the key in a path below OLD_FOLDER; empty for any other path."""
    top, separator, rest = source.partition(f"/{OLD_FOLDER}/")
    key = rest.partition("/")[0]
    return key if top and separator and KEY_PATTERN.fullmatch(key) else ""


def _replace_old_folders(context: Context, container: Mapping[str, Any]) -> None:
    """Replace the folders of a container from an earlier version with empty ones: a mount point in them may be a link.

    Raises:
        Failed: The old folders cannot be moved away.
    """
    parent = context.machine.home / OLD_FOLDER
    sources = [path for path in mount_sources.container_sources(container) if path.is_relative_to(parent)]
    for key in sorted({source.relative_to(parent).parts[0] for source in sources if source != parent}):
        if not KEY_PATTERN.fullmatch(key):
            continue
        try:
            container_files.discard(context, parent / key)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Failed(f"cannot move {parent / key} out of the way: {error.strerror}.") from None
        private.create_folder(parent / key)
    for source in sorted(sources):
        _ensure_open_folder(source)
