"""Remove compile caches that are no longer needed: on demand, with their image, or to stay within the size limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, container_files
from sparkwright.host.containers.compile_caches import ASIDE_FOLDER
from sparkwright.host.module import Context
from sparkwright.host.records import own_folders, verified_states
from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class CompileCache:
    """A compile cache on the host."""

    #: its key, or KEY/aside
    name: str
    container: str
    image: str
    model: str
    size_bytes: int
    #: seconds since the epoch
    used_s: float
    #: reason for keeping it; empty if it may be removed
    kept: str = ""
    why_aside: str = ""

    @property
    def key(self) -> str:
        return self.name.partition("/")[0]


def list_caches(context: Context) -> list[CompileCache]:
    """Return all caches, most recently used first. Raises Failed if Docker cannot be queried for the containers that use them."""
    keys = compile_caches.list_keys(context)
    reasons = _retention_reasons(context) if keys else {}
    caches = [row for key in keys for row in _iter_key_caches(context, key, reasons.get(key, ""))]
    return sorted(caches, key=lambda cache: -cache.used_s)


def _iter_key_caches(context: Context, key: str, reason: str) -> Iterator[CompileCache]:
    folder, record = compile_caches.folder(context, key), compile_caches.read_record(context.state, key)
    model = f"{record.model}@{record.commit[:8]}" if record.model else ""
    identity = (record.container, record.image, model)
    aside_bytes = own_folders.disk_bytes(folder / ASIDE_FOLDER) if (folder / ASIDE_FOLDER).exists() else 0
    yield CompileCache(key, *identity, own_folders.disk_bytes(folder) - aside_bytes, record.used_s, reason)
    if (folder / ASIDE_FOLDER).exists():
        yield CompileCache(f"{key}/{ASIDE_FOLDER}", *identity, aside_bytes, record.used_s, "", record.why_aside)


def _retention_reasons(context: Context) -> dict[str, str]:
    """Return the reasons for keeping caches that a container or one of the last two verified states uses, by key."""
    servers = list(context.state.servers())
    states = [("the last verified state", verified_states.load_last(server)) for server in servers]
    for server in servers:
        states += [("the state before it, for a rollback", row) for row in verified_states.load_earlier(server)[:1]]
    reasons = {key: reason for reason, verified in reversed(states) if (key := verified.spec.get("caches"))}
    return reasons | {key: f"in use by {name}" for key, name in compile_caches.keys_in_use(context).items()}


def remove(context: Context, names: Collection[str]) -> int:
    """Remove caches by name, except those that have become needed. Returns the freed bytes.

    Raises:
        Failed: A cache cannot be removed; the fix is a command for root. The cache stays in the trash, and is not used again.
    """
    removable = [cache for cache in list_caches(context) if cache.name in names and not cache.kept]
    removed_keys = {cache.key for cache in removable if cache.name == cache.key}
    for cache in removable:
        if cache.name == cache.key or cache.key not in removed_keys:
            discard(context, cache.key, only_aside=cache.name != cache.key)
    container_files.empty_trash(context)
    return sum(cache.size_bytes for cache in removable)


def discard(context: Context, key: str, *, only_aside: bool = False) -> None:
    """Move a key's cache, or only the part that was moved aside, to the trash, even if it is in use."""
    folder = compile_caches.folder(context, key)
    container_files.discard(context, folder / ASIDE_FOLDER if only_aside else folder)
    if not only_aside:
        compile_caches.remove_record(context, key)


def enforce_limit(context: Context, limit_gib: float) -> None:
    """Remove caches until their total size is within a limit: first those moved aside, then the least recently used.

    Caches in use are kept. A note reports if they exceed the limit, or if a cache cannot be removed: a verified server never
    fails because of this.
    """
    try:
        compile_caches.discard_unused(context)
        container_files.empty_trash(context)
        caches = list_caches(context)
        excess_bytes = sum(cache.size_bytes for cache in caches) - int(limit_gib * GIB)
        removable = [cache for cache in caches if not cache.kept]
        for cache in sorted(removable, key=lambda cache: (cache.name == cache.key, cache.used_s)):
            excess_bytes -= remove(context, [cache.name]) if excess_bytes > 0 else 0
    except (Failed, OSError) as error:
        context.note(f"compile caches could not be removed: {error}")
        return
    if excess_bytes > 0:
        context.note(f"the compile caches in use take more than {limit_gib:g} GiB; `caches_gib` sets the limit.")


def remove_for_images(context: Context, image_ids: Collection[str]) -> None:
    """Remove the caches of images that are about to be removed; a note reports a failure."""
    try:
        records = (compile_caches.read_record(context.state, key) for key in compile_caches.list_keys(context))
        keys = {record.key for record in records if record.image_id in image_ids}
        if keys:
            remove(context, keys)
    except (Failed, OSError) as error:
        context.note(f"the compile caches of that image could not be removed: {error}")
