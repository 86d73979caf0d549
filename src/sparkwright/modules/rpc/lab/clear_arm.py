from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.host.containers import containers, lifecycle, ownership
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.container import LAB_LABEL
from sparkwright.protocol.result import Change, arg


class ClearArm(StateModule["ClearArm.Args", dict[str, Any]]):
    """The lab's own container of this name is gone; one that is not the lab's stays as it is.

    A container is the lab's when it has the label sparkwright.bench, and is not the last one that was verified: a deploy may
    have taken an arm over.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg("seconds it may take to stop before it is killed", default=defaults.STOP_S)

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        found = containers.inspect(context.docker(), args.name) or {}
        verified = found.get("Id") == good_states.last(context.state).get("container_id")
        return found if ownership.ours(context, found) and not verified else {}

    def differences(self, args: Args, found: dict[str, Any]) -> list[Change]:
        labels = (found.get("Config") or {}).get("Labels") or {}
        return [Change("container", f"{args.name} (arm {labels[LAB_LABEL]})", None)] if LAB_LABEL in labels else []

    def act(self, args: Args, found: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        footprint.before_stop(context, found)
        lifecycle.remove(context, found, args.stop_timeout_s)
        return {}
