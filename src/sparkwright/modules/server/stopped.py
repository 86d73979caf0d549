from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.host.containers import containers, lifecycle, ownership
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import previous
from sparkwright.protocol.result import Change, Result, arg


class Stopped(StateModule["Stopped.Args", dict[str, Any]]):
    """The server is stopped and will not start by itself, until it is started and verified again.

    One that Docker keeps starting again is stopped too. What it was (policy, running, what it held of the memory) is written
    down before the first act.

    Returns: was_running. Fails when it does not stop; refused for a container that sparkwright did not create.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg("seconds until it is killed", default=defaults.STOP_S)

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return containers.inspect(context.docker(), args.name) or {}

    def differences(self, args: Args, found: dict[str, Any]) -> list[Change]:
        if not found:
            return []
        state, policy = found["State"], found["HostConfig"]["RestartPolicy"]["Name"] or "no"
        changes = [Change("state", state["Status"], "stopped")] if state["Running"] else []
        return [*changes, Change("restart", policy, "no")] if policy != "no" else changes

    def describe(self, args: Args, found: dict[str, Any]) -> dict[str, Any]:
        return {"was_running": bool(found) and found["State"]["Running"]}

    def run(self, args: Args, context: Context) -> Result:
        found = self.read(args, context)
        if found and not context.check:
            ownership.guarded(context, found)
            footprint.before_stop(context, found)
            previous.restarted(context, found)
        return super().run(args, context)

    def act(self, args: Args, found: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        lifecycle.set_policy(context, found, "no")
        lifecycle.stop(context, found, args.stop_timeout_s)
        return {}
