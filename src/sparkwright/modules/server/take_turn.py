from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import turns
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The recorded turn."""

    #: name of the container that is to be awake
    awake: str
    #: names of all containers that take turns
    servers: tuple[str, ...]


class TakeTurn(StateModule["TakeTurn.Args", Found]):
    """It is written down which of the servers that share memory by turns is to be awake; all others are asleep.

    Do it before one is stopped for the other: what cuts the run off later, the next command and the health check go by it.

    Returns: awake.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that is to be awake")
        servers: list[dict[str, Any]] = arg("all that take turns, as `host.turns` holds them")

    def read(self, args: Args, context: Context) -> Found:
        return Found(turns.awake(context.state), tuple(turns.names(context.state)))

    def differences(self, args: Args, found: Found) -> list[Change]:
        names = tuple(server["name"] for server in args.servers)
        changes = [Change("awake", found.awake or None, args.name)] if found.awake != args.name else []
        if {*found.servers} != {*names}:
            changes.append(Change("take turns", list(found.servers) or None, list(names)))
        return changes

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"awake": args.name}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        turns.give(context.state, args.name, [server["name"] for server in args.servers], context.run_id)
        return {}
