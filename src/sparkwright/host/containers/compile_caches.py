"""The folders in which a host keeps what engines compile, one a key; see engines/compile_caches.py.

~/.local/share/sparkwright/caches/KEY/files    what the container sees; what is in it may be root's
~/.local/share/sparkwright/caches/KEY/aside    what was moved aside, for looking at; the last one only
~/.local/state/sparkwright/compile_caches/KEY.json    see Kept

KEY is this user's alone (0700), so `files` may be open to whoever the container's user is. A cache counts once a server that
started with it was verified: what a start that failed or was cut off left behind is moved aside before the next one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.compile_caches import FILES, FOLDER, MOUNT
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.containers import containers, files_of_root
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import ContainerSpec
from sparkwright.trust import private

RECORDS = "compile_caches"
ASIDE = "aside"
KEY = re.compile(r"[0-9a-f]{32}")
OPEN = 0o777


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of a key's cache. container, image, image_id, model, commit: of the one created last with it.

    proved: a server that started with it was verified since. warm: the last start found something in it. container_id: of the
    container that started. used_s: when, seconds since the epoch. why_aside: why what lies in ASIDE does.
    """

    key: str
    container: str = ""
    image: str = ""
    image_id: str = ""
    model: str = ""
    commit: str = ""
    proved: bool = False
    warm: bool = False
    container_id: str = ""
    used_s: float = 0.0
    why_aside: str = ""


def folder(context: Context, key: str) -> Path:
    """The folder of a key. Raises Failed for what is none."""
    if not KEY.fullmatch(key):
        raise Failed("the key of the compile caches is none.", fix="Run the command again with this version.")
    return context.machine.home / FOLDER / key


def keys(context: Context) -> list[str]:
    """The keys that have a folder."""
    found = context.machine.home / FOLDER
    return sorted(one.name for one in found.iterdir() if KEY.fullmatch(one.name)) if found.is_dir() else []


def read(state: StateFolder, key: str) -> Kept:
    """What is known of a key; nothing, where its file is gone or damaged."""
    fields = {name: value for name, value in (state.read(f"{RECORDS}/{key}") or {}).items() if name in Kept.__slots__}
    return replace(Kept(key), **{**fields, "key": key})


def mounted(container: Mapping[str, Any]) -> str:
    """The key of the cache that a container has mounted; empty for none."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    return next((key for one in mounts if one.get("Target") == MOUNT and (key := _key_in(str(one.get("Source"))))), "")


def in_use(context: Context) -> dict[str, str]:
    """The keys that a container has mounted, running or not, with its name. Raises Failed when the engine can't be asked."""
    rows = context.docker().api.containers(all=True)
    found = ((key, row["Names"][0].lstrip("/")) for row in rows for key in map(_key_in, _sources(row)) if key)
    return dict(found)


def in_use_or_unknown(context: Context) -> dict[str, str]:
    """The same, with every key where the engine can't be asked."""
    try:
        return in_use(context)
    except SparkwrightError:
        return dict.fromkeys(keys(context), "a container, perhaps: Docker does not say")


def _sources(row: Mapping[str, Any]) -> Iterator[str]:
    return (str(one.get("Source")) for one in row.get("Mounts") or ())


def _key_in(source: str) -> str:
    """The key in the path of such a folder; empty for another path."""
    above, _, name = source.rstrip("/").rpartition("/")
    parent, _, key = above.rpartition("/")
    return key if name == FILES and parent.endswith(f"/{FOLDER}") and KEY.fullmatch(key) else ""


# -- of a container ------------------------------------------------------------------------------------------------------


def created(context: Context, spec: ContainerSpec, image: Mapping[str, Any]) -> dict[str, Any]:
    """What `POST /containers/create` is told beside the rest: "Mounts", and the variables as "Env"; nothing without caches."""
    caches = engine.of_labels(spec.labels).caches
    if not spec.caches or caches is None:
        return {}
    _made(folder(context, spec.caches) / FILES)
    was = read(context.state, spec.caches)
    server = spec.name.removesuffix(containers.INTERIM)  # an interim server starts from the cache of that one
    _write(context, replace(was, container=server, image=spec.image, image_id=str(image["Id"])))
    sources = caches.sources(str(folder(context, spec.caches) / FILES))
    mounts = [_mount(_opened(Path(source)), target) for target, source in sources.items()]
    own = {name: value for name, value in caches.environment.items() if name not in spec.env}
    return {"Mounts": mounts, "Env": [f"{name}={value}" for name, value in sorted(own.items())]}


def _mount(source: Path, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "BindOptions": {"CreateMountpoint": True}}


def before_start(context: Context, container: Mapping[str, Any]) -> None:
    """Write down how a container starts, warm or cold; what no verified server left is moved aside first."""
    key = mounted(container)
    if not key:
        return
    was = read(context.state, key)
    files = _made(folder(context, key) / FILES)
    if _holds(files) and not was.proved:
        why = "no server that started with it was verified"
        if move_aside(context, key, why):
            context.note(f"the compile cache is moved aside: {why}; this start compiles anew.")
        was = read(context.state, key)
    started = replace(was, proved=False, warm=_holds(files), container_id=str(container["Id"]), used_s=time.time())
    _write(context, started)


def verified(context: Context, container: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> None:
    """A server that started with its cache was verified: the next start is a warm one. model: what it serves."""
    key = mounted(container)
    if not key:
        return
    now = replace(read(context.state, key), proved=True, used_s=time.time())
    about = {name: str((model or {}).get(name) or "") for name in ("id", "commit")}
    _write(context, replace(now, model=about["id"] or now.model, commit=about["commit"] or now.commit))


def started_warm(context: Context, container: Mapping[str, Any]) -> bool:
    """Whether the last start of this container found a cache."""
    key = mounted(container)
    found = read(context.state, key) if key else Kept("")
    return found.warm and found.container_id == container.get("Id")


def move_aside(context: Context, key: str, why: str) -> Path | None:
    """Give a key's cache another name, for looking at, and an empty folder in its place. One moved aside before goes.

    None where that can't be done, with a note: what Docker made by itself is root's.
    """
    at = folder(context, key)
    try:
        files_of_root.remove_folder(context, at, ASIDE, read(context.state, key).image_id)
        (at / FILES).rename(at / ASIDE)
        for name in [one.name for one in (at / ASIDE).iterdir() if one.is_dir()]:
            _opened(_made(at / FILES) / name)  # a container may have one of them mounted
        _made(at / FILES)
    except (OSError, Failed) as error:
        context.note(f"cannot move the compile cache in {at} aside: {error}")
        return None
    _write(context, replace(read(context.state, key), proved=False, why_aside=why))
    return at / ASIDE


def _holds(files: Path) -> bool:
    try:
        return any(not one.is_dir() or next(one.iterdir(), None) is not None for one in files.iterdir())
    except OSError:
        return True  # root's, and closed: something is in it


def _made(files: Path) -> Path:
    """The folder that the container sees, open to whoever runs in it; those above it are this user's alone."""
    private.folder(files.parent)
    return _opened(files)


def _opened(path: Path) -> Path:
    if not path.exists():
        path.mkdir(exist_ok=True)
        path.chmod(OPEN)
    return path


def _write(context: Context, kept: Kept) -> None:
    context.state.write(f"{RECORDS}/{kept.key}", asdict(kept))


def forget(context: Context, key: str) -> None:
    """Forget what was known of a key whose folder is gone."""
    context.state.remove(f"{RECORDS}/{key}")
