from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.containers import lifecycle
from sparkwright.host.gateway import container, good, place
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import history
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The gateway's containers, and the last verified state."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]


class GatewayKeep(StateModule["GatewayKeep.Args", Found]):
    """A gateway that was proved gets its restart policy; it becomes the last good state, and the container before it goes.

    Returns: container_id. Fails when it does not run.
    """

    @dataclass(frozen=True)
    class Args:
        spec: dict[str, Any] = arg("the gateway's container")
        digest: str = arg("of its files, as `gateway_running` returns it")
        models: list[str] = arg("the models that it routes")
        proof: dict[str, Any] = arg("what a rollback has to ask: name, port, keyed, tls, models", default_factory=dict)
        changed: list[Any] = arg("what differed from the gateway before, for the history", default_factory=list)
        rolled_back: bool = arg("whether it is an earlier one again; later ones are forgotten", default=False)

    def read(self, args: Args, context: Context) -> Found:
        name = args.spec["name"]
        return Found(container.current(name, context), container.previous(name, context), good.last(context))

    def differences(self, args: Args, found: Found) -> list[Change]:
        policy = found.current["HostConfig"]["RestartPolicy"]["Name"] if found.current else None
        changes = (
            [Change("restart", policy, args.spec["restart"], "verified")] if policy != args.spec["restart"] else []
        )
        was = found.verified.get("container_id"), found.verified.get("digest")
        if was != (found.current.get("Id"), args.digest):
            changes.append(Change("last good state", was[1], args.digest))
        if found.previous:
            changes.append(Change("previous container", found.previous["Name"].lstrip("/"), None))
        return changes

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"container_id": found.current.get("Id", "")}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        name = args.spec["name"]
        if not found.current or not found.current["State"]["Running"]:
            raise Failed(f"container {name} is no longer running.", fix=f"On the host: `docker logs --tail 50 {name}`.")
        lifecycle.set_policy(context, found.current, args.spec["restart"])
        spec = container.resolved(args.spec, context).to_json()
        now = {"spec": spec, "digest": args.digest, "container_id": found.current["Id"], **_about(args)}
        good.remember(context, now, rolled_back=args.rolled_back)
        if found.previous:
            lifecycle.discard(context, found.previous["Id"])
        place.drop(place.state(context).path / place.EARLIER)
        names = [item.get("field", "") for item in args.changed if isinstance(item, dict)]
        rows = [{"field": field, "before": None, "after": None} for field in names]
        about = {"container_id": found.current["Id"], "image": args.spec["image"], "changed": rows}
        what = "gateway rolled back" if args.rolled_back else "gateway verified"
        history.append(context, what, **about, why=f"routes {', '.join(args.models)}")
        return {}


def _about(args: GatewayKeep.Args) -> dict[str, Any]:
    return {"models": args.models, "proof": args.proof}
