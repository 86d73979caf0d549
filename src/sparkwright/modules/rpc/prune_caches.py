from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparkwright import units
from sparkwright.host.containers import cache_removal
from sparkwright.host.containers.cache_removal import Row
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg
from sparkwright.visible import count


@dataclass(frozen=True, slots=True)
class Found:
    """The compile caches of the host."""

    #: the most recently used first
    rows: tuple[Row, ...] = ()


class PruneCaches(StateModule["PruneCaches.Args", Found]):
    """Compile caches that nothing needs are removed, and what was moved aside.

    Never removed: the cache of a container, running or not; that of the last verified state, and of the one that a rollback goes
    to. What a container wrote as root is removed by a container.

    Returns: caches (name, container, image, model, size_bytes, used_s, kept, why_aside), freed_bytes (in check mode: what would
    be).
    """

    @dataclass(frozen=True)
    class Args:
        only: list[str] | None = arg("the confirmed names; default: all that may be removed", default=None)

    def read(self, args: Args, context: Context) -> Found:
        return Found(tuple(cache_removal.rows(context)))

    def differences(self, args: Args, found: Found) -> list[Change]:
        return [Change("compile cache", row.name, None, row.why_aside or "unused") for row in _going(args, found)]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        going = _going(args, found)
        freed = sum(row.size_bytes for row in going)
        msg = f"{count(len(going), 'compile cache')}, {units.size(freed)}"
        return {"caches": [asdict(row) for row in found.rows], "freed_bytes": freed, "msg": msg}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        return {"freed_bytes": cache_removal.remove(context, [row.name for row in _going(args, found)])}


def _going(args: PruneCaches.Args, found: Found) -> list[Row]:
    return [row for row in found.rows if not row.kept and (args.only is None or row.name in args.only)]
