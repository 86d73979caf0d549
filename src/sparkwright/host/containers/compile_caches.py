"""Folders on the host for the engines' compile caches, one per key; see engines/caches.py.

~/.local/share/sparkwright/compile-caches/KEY/live/NAME/FOLDER    mounted by the container NAME; may contain files of root
                                             /frozen/FOLDER       the copy made when a server was verified
                                             /aside/FOLDER        the last cache that was moved aside, for inspection
~/.local/state/sparkwright/compile_caches/KEY.json                see Kept

A container mounts each FOLDER but none of their parents, so it cannot replace one. KEY is only accessible to this user (0700), so
the folders below can be open to any user of the container. Each start begins with a copy of the frozen cache and nothing else: no
leftovers of a failed start, and no files written after the verification (docs/decisions/0035).

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
from sparkwright.engines.caches import CACHE, FOLDER, LIVE, MOUNT, live_folder
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import container_files, containers, mount_sources
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust import private
from sparkwright.trust.names import STEP, matched

RECORDS = "compile_caches"
FROZEN, ASIDE = "frozen", "aside"
#: folders of earlier versions, below the user's home
OLD_FOLDER, OLD_FILES = ".local/share/sparkwright/caches", "files"
KEY = re.compile(r"[0-9a-f]{32}")
OPEN = 0o777
#: disk space that a copy must leave free
SPARE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Kept:
    """The record of a key's cache."""

    key: str
    container: str = ""  # name of the container last created with it; the next four fields describe that container
    image: str = ""
    image_id: str = ""
    model: str = ""
    commit: str = ""
    proved: bool = False  # a server that was started with it has been verified
    warm: bool = False  # the last start found something in it
    container_id: str = ""  # of the container that started last
    used_s: float = 0.0  # since the epoch
    why_aside: str = ""  # why the cache in ASIDE was moved there
    frozen: str = ""  # the digest of the copy in FROZEN, see container_files; empty for none


def folder(context: Context, key: str) -> Path:
    """Return the folder of a key. Raises Failed for an invalid key."""
    if not KEY.fullmatch(key):
        raise Failed("the key of the compile caches is none.", fix="Run the command again with this version.")
    return context.machine.home / FOLDER / key


def keys(context: Context) -> list[str]:
    """Return the keys that have a folder."""
    return _keys_in(context.machine.home / FOLDER)


def _keys_in(found: Path) -> list[str]:
    return sorted(path.name for path in found.iterdir() if KEY.fullmatch(path.name)) if found.is_dir() else []


def read(state: StateFolder, key: str) -> Kept:
    """Read the record of a key; an empty record if its file is missing or damaged."""
    fields = {name: value for name, value in (state.read(f"{RECORDS}/{key}") or {}).items() if name in Kept.__slots__}
    return replace(Kept(key), **{**fields, "key": key})


def mounted(container: Mapping[str, Any]) -> str:
    """Return the key of the cache that a container mounts; empty if it mounts none."""
    return _mounted(container)[0]


def _mounted(container: Mapping[str, Any]) -> tuple[str, str]:
    """Return the key of a container's cache, and the container's name at creation; both empty without a cache."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    found = (_key_in(str(mount.get("Source"))) for mount in mounts if mount.get("Target") == MOUNT)
    return next((item for item in found if item[0]), ("", ""))


def in_use(context: Context) -> dict[str, str]:
    """Return the keys mounted by running or stopped containers, each with the container's name.

    Raises:
        Failed: The engine cannot be queried.
    """
    return {key: name for (key, _), name in _users(context).items()}


def _users(context: Context) -> dict[tuple[str, str], str]:
    """Return the names of the containers that mount a cache, by key and name of the live folder."""
    rows = context.docker().api.containers(all=True)
    found = ((item, row["Names"][0].lstrip("/")) for row in rows for item in map(_key_in, _sources(row)) if item[0])
    return dict(found)


def in_use_or_unknown(context: Context) -> dict[str, str]:
    """Return the same as `in_use`, or every key if the engine cannot be queried."""
    try:
        return in_use(context)
    except SparkwrightError:
        return dict.fromkeys(keys(context), "a container, perhaps: Docker does not say")


def _sources(row: Mapping[str, Any]) -> Iterator[str]:
    return (str(mount.get("Source")) for mount in row.get("Mounts") or ())


def _key_in(source: str) -> tuple[str, str]:
    """Return the key and the name in the path of a mounted folder; both empty for another path."""
    above, _, last = source.rstrip("/").rpartition("/")
    top, found, below = above.rpartition(f"/{FOLDER}/")
    key, live, name = (*below.split("/"), "", "", "")[:3]
    fits = last == CACHE and found and top and live == LIVE and KEY.fullmatch(key) and STEP.fullmatch(name)
    return (key, name) if fits else ("", "")


# -- the cache of a container --------------------------------------------------------------------------------------------


def created(context: Context, spec: ContainerSpec, image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the additional "Mounts" and "Env" for `POST /containers/create`; empty if the container has no caches."""
    caches = engine.of_labels(spec.labels).caches
    if not spec.caches or caches is None:
        return {}
    was = read(context.state, spec.caches)
    server = spec.name.removesuffix(containers.INTERIM)  # an interim server starts from its server's cache
    _write(context, replace(was, container=server, image=spec.image, image_id=str(image["Id"])))
    try:
        sources = caches.sources(str(_live(context, spec.caches, spec.name)))
        for source in sources.values():
            _opened(Path(source))
    except OSError as error:
        context.note(f"{spec.name} gets no compile cache: {error}")
        return {}
    mounts = [_mount(source, target) for target, source in sources.items()]
    own = {name: value for name, value in caches.environment.items() if name not in spec.env}
    return {"Mounts": mounts, "Env": [f"{name}={value}" for name, value in sorted(own.items())]}


def _mount(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "BindOptions": {"CreateMountpoint": True}}


def _live(context: Context, key: str, name: str) -> Path:
    """Return the parent of the folders that a container mounts; create it if missing."""
    folder(context, key)
    found = Path(live_folder(str(context.machine.home), key, matched(STEP, name, "the container's name")))
    return private.folder(found)


def before_start(context: Context, container: Mapping[str, Any]) -> None:
    """Give a container that is about to start a copy of the verified cache, or an empty one, and record which.

    Raises:
        Failed: The previous contents cannot be moved away.
    """
    _renew_old(context, container)
    key, name = _mounted(container)
    if not key:
        return
    try:
        _before_start(context, container, key, name)
    except OSError as error:
        at = folder(context, key)
        raise Failed(f"cannot move the compile cache in {at} out of the way: {error.strerror}.") from None
    container_files.try_to_empty_trash(context)


def _before_start(context: Context, container: Mapping[str, Any], key: str, name: str) -> None:
    was = read(context.state, key)
    if not was.proved:
        if _holds(folder(context, key) / FROZEN) or _holds(_live(context, key, name)):
            why = "no server that started with it was verified"
            if _moved_aside(context, key, name, why):
                context.note(f"the compile cache is moved aside: {why}; this start compiles from scratch.")
        was = read(context.state, key)
    warm = _renewed(context, container, key, name)
    now = replace(was, proved=False, warm=warm, container_id=str(container["Id"]), used_s=time.time())
    _write(context, now)


def verified(context: Context, container: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> None:
    """Keep a copy of a verified server's cache, so that its next start is warm.

    A cache that cannot be copied is not kept: the next start is cold, and a note gives the reason.

    Args:
        model: the model that it serves.
    """
    key, name = _mounted(container)
    if not key:
        return
    about = {item: str((model or {}).get(item) or "") for item in ("id", "commit")}
    was = read(context.state, key)
    now = replace(was, used_s=time.time(), model=about["id"] or was.model, commit=about["commit"] or was.commit)
    try:
        frozen = _frozen(context, key, name)
    except (OSError, SparkwrightError) as error:
        context.note(f"the compile cache is not kept, and the next start compiles from scratch: {error}")
        _write(context, replace(now, proved=False, frozen=""))
        return
    _write(context, replace(now, proved=True, frozen=frozen))


def _frozen(context: Context, key: str, name: str) -> str:
    """Copy the folders that a container mounts. Returns the digest of the copy."""
    at, live = folder(context, key), _live(context, key, name)
    fresh = at / f".{FROZEN}"
    copied = _copied(context, live, fresh)
    if copied.unreadable:
        container_files.discard(context, fresh)
        for path in sorted(live.iterdir()):
            container_files.open_for_reading(context, path)
        copied = _copied(context, live, fresh)
    if (at / FROZEN).exists():
        container_files.discard(context, at / FROZEN)
    fresh.rename(at / FROZEN)
    return copied.digest


def _copied(context: Context, source: Path, target: Path) -> container_files.Copied:
    """Copy a folder to a new one. If it raises Unfit or OSError, nothing is left behind."""
    if target.exists():
        container_files.discard(context, target)
    room = context.machine.free_bytes(target.parent) - SPARE_BYTES
    try:
        return container_files.copy(source, target, room)
    except (OSError, SparkwrightError):
        if target.exists():
            container_files.discard(context, target)
        raise


def _renewed(context: Context, container: Mapping[str, Any], key: str, name: str) -> bool:
    """Replace a container's cache with a copy of the frozen one, or with empty folders. Returns True if it is not empty."""
    at, live, wanted = folder(context, key), _live(context, key, name), read(context.state, key).frozen
    container_files.discard(context, live)
    warm = False
    if wanted and (at / FROZEN).is_dir():
        try:
            copied = _copied(context, at / FROZEN, live)
            warm = copied.digest == wanted and copied.files > 0
            why = "" if copied.digest == wanted else "it is not as it was verified"
        except (OSError, SparkwrightError) as error:
            why = str(error)
        if why:
            context.note(f"the compile cache is not used, and this start compiles from scratch: {why}")
        if why and live.exists():
            container_files.discard(context, live)
    live = _live(context, key, name)
    for source in mount_sources.of_container(container):
        if source.is_relative_to(live):
            _opened(source)
    return warm


def started_warm(context: Context, container: Mapping[str, Any]) -> bool:
    """Return True if the last start of this container found a cache."""
    key = mounted(container)
    found = read(context.state, key) if key else Kept("")
    return found.warm and found.container_id == container.get("Id")


def move_aside(context: Context, container: Mapping[str, Any], why: str) -> Path | None:
    """Move the cache of a stopped container to ASIDE for inspection; its next start is cold.

    Returns:
        The folder; None if it cannot be moved, with a note.
    """
    key, name = _mounted(container)
    return _moved_aside(context, key, name, why)


def _moved_aside(context: Context, key: str, name: str, why: str) -> Path | None:
    at = folder(context, key)
    try:
        for old in (at / ASIDE, at / FROZEN):
            if old.exists():
                container_files.discard(context, old)
        live = _live(context, key, name)
        live.rename(at / ASIDE)
        for path in sorted((at / ASIDE).iterdir()):
            _opened(_live(context, key, name) / path.name)  # the container has it mounted
    except (OSError, Failed) as error:
        context.note(f"cannot move the compile cache in {at} aside: {error}")
        return None
    _write(context, replace(read(context.state, key), proved=False, frozen="", why_aside=why))
    return at / ASIDE


def _holds(above: Path) -> bool:
    """Return True if any subfolder is not empty or not readable."""
    try:
        return any(not path.is_dir() or next(path.iterdir(), None) is not None for path in above.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True  # owned by root and not readable: it has contents


def _opened(path: Path) -> Path:
    """Return a folder that any user in the container can write to; create it if missing."""
    if not path.exists():
        path.mkdir(exist_ok=True)
        path.chmod(OPEN)
    return path


def _write(context: Context, kept: Kept) -> None:
    context.state.write(f"{RECORDS}/{kept.key}", asdict(kept))


def forget(context: Context, key: str) -> None:
    """Remove the record of a key whose folder is gone."""
    context.state.remove(f"{RECORDS}/{key}")


# -- unused caches -------------------------------------------------------------------------------------------------------


def retire(context: Context) -> None:
    """Move unused folders to the trash: live folders of removed containers, and unmounted folders of earlier versions.

    Raises:
        Failed: The engine cannot be queried.
        OSError: A folder cannot be moved.
    """
    users = _users(context)
    for key in keys(context):
        live = folder(context, key) / LIVE
        for path in sorted(live.iterdir()) if live.is_dir() else ():
            if (key, path.name) not in users:
                container_files.discard(context, path)
    for path, user in old_folders(context).items():
        if not user:
            container_files.discard(context, path)
    with contextlib.suppress(OSError):
        (context.machine.home / OLD_FOLDER).rmdir()


def old_folders(context: Context) -> dict[Path, str]:
    """Return the folders left by earlier versions, each with the container that mounts it, or "".

    Raises:
        Failed: There are such folders, and the engine cannot be queried.
    """
    old = context.machine.home / OLD_FOLDER
    found = _keys_in(old)
    rows = context.docker().api.containers(all=True) if found else ()
    users = {_old_key_in(source): row["Names"][0].lstrip("/") for row in rows for source in _sources(row)}
    return {old / key: users.get(key, "") for key in found}


def mounted_folders(context: Context) -> list[Path]:
    """Return the cache folders that containers need to start again; all folders if the engine cannot be queried."""
    now = [folder(context, key) for key in in_use_or_unknown(context)]
    try:
        now += [path for path, user in old_folders(context).items() if user]
    except SparkwrightError:
        now.append(context.machine.home / OLD_FOLDER)
    return [path for path in now if path.exists()]


def _old_key_in(source: str) -> str:
    """Return the key in a path below a folder of earlier versions; empty for another path."""
    top, found, below = source.partition(f"/{OLD_FOLDER}/")
    key = below.partition("/")[0]
    return key if top and found and KEY.fullmatch(key) else ""


def _renew_old(context: Context, container: Mapping[str, Any]) -> None:
    """Give a container of an earlier version empty folders: its old ones may contain a link in place of a mount point.

    Raises:
        Failed: The old folders cannot be moved away.
    """
    old = context.machine.home / OLD_FOLDER
    sources = [path for path in mount_sources.of_container(container) if path.is_relative_to(old)]
    for key in sorted({source.relative_to(old).parts[0] for source in sources if source != old}):
        if not KEY.fullmatch(key):
            continue
        try:
            container_files.discard(context, old / key)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Failed(f"cannot move {old / key} out of the way: {error.strerror}.") from None
        private.folder(old / key)
    for source in sorted(sources):
        _opened(source)
