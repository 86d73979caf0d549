from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.host.containers import replacement
from sparkwright.host.gateway import drain_record
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import good_states
from sparkwright.protocol.result import Change, Result, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The server, and the gateways at which it is drained."""

    #: names of the gateways at which the server is drained
    gateways: list[str] = field(default_factory=list)
    #: whether the server's container runs
    running: bool = False
    #: whether it is the last verified server
    verified: bool = False


class GatewayReturn(StateModule["GatewayReturn.Args", Found]):
    """A server that `drain` drained at its gateways gets requests from them again, once it is verified.

    It waits until they find it up, 30 s at most. A gateway that does not answer is named and fails nothing: the next run or
    health check that finds the server well returns it there. A server that does not run, or that nobody verified, stays drained.

    Returns: returned (names of gateways).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        proved: bool = arg("this run has just checked it; else only the last verified server counts", default=False)

    def run(self, args: Args, context: Context) -> Result:
        result = super().run(args, context)
        nowhere = result.changed and not context.check and not result.data["returned"]
        return replace(result, changed=False, diff=[]) if nowhere else result

    def read(self, args: Args, context: Context) -> Found:
        names = [gateway.name for gateway in drain_record.of(context.state)]
        container = replacement.current(context, args.name) if names else {}
        good = good_states.last(context.state).get("container_id")
        running = bool(container) and bool(container["State"]["Running"])
        return Found(names, running, bool(container) and container["Id"] == good)

    def differences(self, args: Args, found: Found) -> list[Change]:
        if not found.running or not (args.proved or found.verified):
            return []
        return [Change(f"gateway {name}", "draining", "ready") for name in found.gateways]

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        stays = bool(found.gateways) and not self.differences(args, found)
        message = (
            f"stays drained at {', '.join(found.gateways)}: it is not a verified server that runs" if stays else ""
        )
        return {"returned": [], "msg": message}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        returned, problems = drain_record.give_back(context.state)
        for problem in problems:
            context.note(f"{problem}.")
        message = f"gets requests again from {', '.join(returned)}" if returned else "not returned yet"
        return {"returned": returned, "msg": message}
