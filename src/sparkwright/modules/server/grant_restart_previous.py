from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, lifecycle, mount_sources, replacement
from sparkwright.host.memory import host_lost, service_guard
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states, history
from sparkwright.protocol.result import Change, arg


class GrantRestartPrevious(StateModule["GrantRestartPrevious.Args", dict[str, Any]]):
    """The previous server, restored and verified again, has the restart policy that it had; the swap is over.

    Returns: container_id. Fails when it does not run.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        restart: str = arg("the policy that `restore_previous` returned", default="no")
        why: str = arg("why it was restored, for the history", default="")
        what: str = arg("what the history calls it", default="restored")

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return replacement.current(context, args.name)

    def differences(self, args: Args, found: dict[str, Any]) -> list[Change]:
        policy = found["HostConfig"]["RestartPolicy"]["Name"] if found else None
        wanted = mount_sources.policy(found, args.restart)
        why = (
            "verified again" if wanted == args.restart else "its mounts lie in one another; `invoke deploy` replaces it"
        )
        return [Change("restart", policy, wanted, why)] if policy != wanted else []

    def describe(self, args: Args, found: dict[str, Any]) -> dict[str, Any]:
        return {"container_id": found.get("Id", "")}

    def run(self, args: Args, context: Context) -> Any:
        result = super().run(args, context)
        if not context.check:
            context.guards.verified()
            compile_caches.verified(context, self.read(args, context))
            service_guard.write(context)
            host_lost.verified(context.state, good_states.spec_of(context.state, result.data["container_id"]))
            context.state.remove("previous")
            history.append(context, args.what, **_served(result.data["container_id"], context), why=args.why)
        return result

    def act(self, args: Args, found: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        if not found or not found["State"]["Running"]:
            fix = f"On the host: `docker logs --tail 50 {args.name}`."
            raise Failed(f"container {args.name} is not running.", fix=fix)
        lifecycle.set_policy(context, found, changes[0].after)
        return {}


def _served(container_id: str, context: Context) -> dict[str, Any]:
    """Return what serves again, for the history; its container alone if it was never verified."""
    good = good_states.last(context.state)
    if good.get("container_id") != container_id:
        return {"container_id": container_id}
    model = good.get("model") or {}
    about = {"image": good["spec"].get("image"), "model": model.get("id"), "commit": model.get("commit")}
    return {"container_id": container_id, **about}
