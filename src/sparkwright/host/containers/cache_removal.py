"""Removal of compile caches that are no longer needed: on demand, with their image, or to stay within the size limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, container_files
from sparkwright.host.containers.compile_caches import ASIDE
from sparkwright.host.module import Context
from sparkwright.host.records import good_states, own_folders
from sparkwright.units import GIB


@dataclass(frozen=True, slots=True)
class Row:
    """A compile cache on the host."""

    #: its key, or KEY/aside
    name: str
    container: str
    image: str
    model: str
    size_bytes: int
    #: seconds since the epoch
    used_s: float
    #: why it must stay; empty when it may be removed
    kept: str = ""
    why_aside: str = ""

    @property
    def key(self) -> str:
        return self.name.partition("/")[0]


def rows(context: Context) -> list[Row]:
    """Return all caches, most recently used first. Raises Failed if the engine cannot be queried for their users."""
    keys = compile_caches.keys(context)
    why = _needed(context) if keys else {}
    found = [row for key in keys for row in _of_key(context, key, why.get(key, ""))]
    return sorted(found, key=lambda value: -value.used_s)


def _of_key(context: Context, key: str, kept: str) -> Iterator[Row]:
    at, known = compile_caches.folder(context, key), compile_caches.read(context.state, key)
    model = f"{known.model}@{known.commit[:8]}" if known.model else ""
    about = (known.container, known.image, model)
    aside_bytes = own_folders.disk_bytes(at / ASIDE) if (at / ASIDE).exists() else 0
    yield Row(key, *about, own_folders.disk_bytes(at) - aside_bytes, known.used_s, kept)
    if (at / ASIDE).exists():
        yield Row(f"{key}/{ASIDE}", *about, aside_bytes, known.used_s, "", known.why_aside)


def _needed(context: Context) -> dict[str, str]:
    """Return the keys that must stay, with the reason: a container, the verified state, or the state before it uses them."""
    states = [("the last verified state", good_states.last(state_folder)) for state_folder in context.state.servers()]
    for server in context.state.servers():
        states += [("the state before it, for a rollback", row) for row in good_states.before(server)[:1]]
    reasons = {str(key): why for why, state in reversed(states) if (key := (state.get("spec") or {}).get("caches"))}
    return {**reasons, **{key: f"in use by {name}" for key, name in compile_caches.in_use(context).items()}}


def remove(context: Context, names: Collection[str]) -> int:
    """Remove caches by the names of their rows, except those needed by now. Returns the freed bytes.

    Raises:
        Failed: Something cannot be removed, with the command for root. It is in the trash then, and never used again.
    """
    going = [row for row in rows(context) if row.name in names and not row.kept]
    all_of_it = {row.key for row in going if row.name == row.key}
    for row in going:
        if row.name == row.key or row.key not in all_of_it:
            discard(context, row.key, only_aside=row.name != row.key)
    container_files.empty_trash(context)
    return sum(row.size_bytes for row in going)


def discard(context: Context, key: str, *, only_aside: bool = False) -> None:
    """Move a key's cache, or only the part that was moved aside, to the trash, even if it is in use."""
    at = compile_caches.folder(context, key)
    container_files.discard(context, at / ASIDE if only_aside else at)
    if not only_aside:
        compile_caches.forget(context, key)


def within(context: Context, bound_gib: float) -> None:
    """Remove caches until all together are below a limit: first those moved aside, then the least recently used.

    Needed caches stay. A note reports if those alone exceed the limit, or if something cannot be removed: a verified server never
    fails because of this.
    """
    try:
        compile_caches.retire(context)
        container_files.empty_trash(context)
        found = rows(context)
        over = sum(row.size_bytes for row in found) - int(bound_gib * GIB)
        for row in sorted((row for row in found if not row.kept), key=lambda row: (row.name == row.key, row.used_s)):
            over -= remove(context, [row.name]) if over > 0 else 0
    except (Failed, OSError) as error:
        context.note(f"compile caches are not cleared: {error}")
        return
    if over > 0:
        context.note(
            f"the compile caches that are needed hold more than {bound_gib:g} GiB; `caches_gib` sets the bound."
        )


def with_image(context: Context, image_ids: Collection[str]) -> None:
    """Remove the caches of images that are about to be removed; a note reports what cannot be removed."""
    try:
        known = (compile_caches.read(context.state, key) for key in compile_caches.keys(context))
        keys = {kept.key for kept in known if kept.image_id in image_ids}
        if keys:
            remove(context, keys)
    except (Failed, OSError) as error:
        context.note(f"the compile caches of that image stay: {error}")
