from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, containers, lifecycle, mount_sources, replacement
from sparkwright.host.memory import footprint, host_lost
from sparkwright.host.memory.start_guard import key_of
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states, turns
from sparkwright.protocol.result import Change, arg


class Started(StateModule["Started.Args", dict[str, Any]]):
    """A container that is there runs, with this restart policy. It is not compared with any recipe.

    Returns: id. Fails when it is not there, or the engine refuses to start it (says why, and who holds its port). Fails,
    too, when the host went down with it before, until a person says `--anyway`.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        restart: str = arg("its restart policy: the verified one, or no", default="no")

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return replacement.current(context, args.name)

    def differences(self, args: Args, found: dict[str, Any]) -> list[Change]:
        if not found:
            return [Change("state", None, "running")]
        state, policy = found["State"], found["HostConfig"]["RestartPolicy"]["Name"]
        changes = [] if state["Running"] else [Change("state", state["Status"], "running")]
        return [*changes, Change("restart", policy, args.restart)] if policy != args.restart else changes

    def describe(self, args: Args, found: dict[str, Any]) -> dict[str, Any]:
        return {"id": found.get("Id", "")}

    def act(self, args: Args, found: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        from docker.errors import APIError

        if not found:
            raise Failed(f"there is no container {args.name}.")
        turns.refuse_start(context.state)
        spec = good_states.spec_of(context.state, found["Id"])
        if not found["State"]["Running"]:
            host_lost.refuse(context, host_lost.forbids(context.state, spec, found["Id"]), Failed)
        client = context.docker()
        bindings = found["HostConfig"].get("PortBindings") or {}
        ports = tuple(f"{row['HostPort']}:0" for rows in bindings.values() for row in rows)
        if not found["State"]["Running"]:
            compile_caches.before_start(context, found)
            held = footprint.recorded(context, found["Id"])
            context.guards.expect(context.machine.meminfo()["MemAvailable"] - held if held else None)
            key = key_of(spec) if spec else ""
            context.guards.begin(context.machine, context.state, context.run_id, found, key=key)
        try:
            lifecycle.start(context, found["Id"])
        except APIError as error:
            context.guards.end()
            raise containers.refused_start(error, client, ports) from None
        context.guards.runs(containers.inspect(client, found["Id"]) or {})
        lifecycle.set_policy(context, found, mount_sources.policy(found, args.restart))
        return {}
