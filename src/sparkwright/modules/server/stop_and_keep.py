from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.host.containers import containers, lifecycle, ownership, replacement
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states, previous
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The server's container, and the one that was stopped and kept earlier."""

    #: its inspect; empty when there is none
    current: dict[str, Any]
    #: its inspect; empty when there is none
    previous: dict[str, Any]


class StopAndKeep(StateModule["StopAndKeep.Args", Found]):
    """The server is stopped, will not start by itself, and is kept under NAME-previous.

    It is the container NAME; where there is none, the last verified server of the host, which another recipe had named.

    Its policy goes to `no` before it stops, so that no reboot at any moment starts two. What it was is written down before the
    first act, for `restore_previous`: a run that is cut off anywhere between leaves enough to bring it back. Without an old
    server there is nothing to do. An older NAME-previous left by an unfinished run is kept when the current one never was
    verified (then the current one is the failed attempt, and is removed), else it is removed.

    Returns: previous (its name, or empty).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg("seconds until it is killed", default=defaults.STOP_S)

    def read(self, args: Args, context: Context) -> Found:
        return Found(replacement.current(context, args.name), replacement.kept(context, args.name))

    def differences(self, args: Args, found: Found) -> list[Change]:
        if not found.current:
            return []
        now, kept = replacement.name_of(found.current), args.name + containers.PREVIOUS
        return [Change("container", f"{now} ({found.current['State']['Status']})", f"{kept} (stopped)")]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"previous": args.name + containers.PREVIOUS if found.current or found.previous else ""}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        now, kept = replacement.name_of(found.current), args.name + containers.PREVIOUS
        ownership.guarded(context, found.current)
        good = good_states.last(context.state)
        footprint.before_stop(context, found.current)
        if found.previous and found.current["Id"] != good.get("container_id"):
            lifecycle.remove(context, found.current, args.stop_timeout_s)
            return {"msg": f"removed an unfinished {now}; {replacement.name_of(found.previous)} is still kept"}
        if found.previous:
            lifecycle.discard(context, found.previous["Id"])
        previous.stop_and_keep(context, found.current, args.name)
        lifecycle.set_policy(context, found.current, "no")
        lifecycle.stop(context, found.current, args.stop_timeout_s)
        lifecycle.rename(context, found.current, kept)
        return {"msg": f"stopped, kept as {kept}"}
