"""Modules about servers that take turns in the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host.containers import containers
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import good_states, turns
from sparkwright.protocol.result import Change, Result, arg


class Turn(Module["Turn.Args"]):
    """Find which of the servers that share memory by turns is to be awake. Changes nothing.

    It is the one that was written down last (`take_turn`). Where nothing was, the one that runs; else the first of the list.

    Returns: asleep (it is not this server's turn), running, proved (its container was verified, as it is), awake (a container's
    name), interrupted (one runs whose turn it is not), other: the one to stop before this one starts, as it was verified last:
    name, host, gateways, running, base_url, spec, model, serve; its name is empty where there is none.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        servers: list[dict[str, Any]] = arg("all that take turns, as `host.turns` holds them")

    def run(self, args: Args, context: Context) -> Result:
        found = {server["name"]: containers.inspect(context.docker(), server["name"]) or {} for server in args.servers}
        running = [name for name, value in found.items() if value and value["State"]["Running"]]
        awake = turns.awake(context.state)
        if awake not in found:
            awake = next(iter(running), next(iter(found)))
        others = [server for server in args.servers if server["name"] in running and server["name"] != args.name]
        if len(others) > 1:
            names = " and ".join(other["name"] for other in others)
            raise Failed(f"{names} run at the same time, and take turns.", fix="Stop one with `docker stop`.")
        others = others or [server for server in args.servers if server["name"] == awake != args.name]
        own, good = found[args.name], good_states.last(context.state)
        data = {
            "asleep": awake != args.name,
            "running": args.name in running,
            "proved": bool(own) and own["Id"] == good.get("container_id"),
            "awake": awake,
            "interrupted": any(name != awake for name in running),
            "other": _other(others[0], found, context) if others else {"name": "", "running": False},
        }
        return Result(msg=_sentence(args.name, data, own), data=data)


def _other(server: Mapping[str, Any], found: Mapping[str, Any], context: Context) -> dict[str, Any]:
    container = found[server["name"]]
    good = good_states.last(context.state.of_server(server["name"]))
    about = {key: good.get(key) or {} for key in ("spec", "model", "serve")}
    url = containers.url_of(container) if container else ""
    running = bool(container) and bool(container["State"]["Running"])
    kept = bool(container) and container["Id"] == good.get("container_id")
    return {**about, **server, "running": running, "proved": kept, "base_url": url}


def _sentence(name: str, data: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    if not data["asleep"]:
        also = f", and {data['other']['name']} runs: a switch was interrupted" if data["interrupted"] else ""
        return f"it is the turn of {name}{also}"
    if data["running"]:
        return f"{name} runs, and it is the turn of {data['awake']}: a switch was interrupted"
    if not data["proved"]:
        return f"{name} is asleep and was never verified: it is the turn of {data['awake']}"
    ended_s = containers.moment(str((own.get("State") or {}).get("FinishedAt") or ""))
    since = f" (since {units.moment(ended_s, units.MINUTE)})" if ended_s else ""
    return f"{name} is asleep{since}: it is the turn of {data['awake']}"


@dataclass(frozen=True, slots=True)
class TakeTurnFound:
    """The recorded turn."""

    #: name of the container that is to be awake
    awake: str
    #: names of all containers that take turns
    servers: tuple[str, ...]


class TakeTurn(StateModule["TakeTurn.Args", TakeTurnFound]):
    """It is written down which of the servers that share memory by turns is to be awake; all others are asleep.

    Do it before one is stopped for the other: what cuts the run off later, the next command and the health check go by it.

    Returns: awake.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that is to be awake")
        servers: list[dict[str, Any]] = arg("all that take turns, as `host.turns` holds them")

    def read(self, args: Args, context: Context) -> TakeTurnFound:
        return TakeTurnFound(turns.awake(context.state), tuple(turns.names(context.state)))

    def differences(self, args: Args, found: TakeTurnFound) -> list[Change]:
        names = tuple(server["name"] for server in args.servers)
        changes = [Change("awake", found.awake or None, args.name)] if found.awake != args.name else []
        if {*found.servers} != {*names}:
            changes.append(Change("take turns", list(found.servers) or None, list(names)))
        return changes

    def describe(self, args: Args, found: TakeTurnFound) -> dict[str, Any]:
        return {"awake": args.name}

    def act(self, args: Args, found: TakeTurnFound, changes: list[Change], context: Context) -> dict[str, Any]:
        turns.give(context.state, args.name, [server["name"] for server in args.servers], context.run_id)
        return {}
