from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkwright.host.containers import lifecycle
from sparkwright.host.gateway import container, good, place
from sparkwright.host.module import Context, StateModule
from sparkwright.host.records import history
from sparkwright.protocol.result import Change, arg


@dataclass(frozen=True, slots=True)
class Found:
    """The gateway's containers, and the last verified state with its files."""

    #: inspect of the container; empty when there is none
    current: dict[str, Any]
    #: inspect of the previous container; empty when there is none
    previous: dict[str, Any]
    #: the last verified state
    verified: dict[str, Any]
    #: the files of that state
    files: dict[str, str] = field(default_factory=dict)


class GatewayRestore(StateModule["GatewayRestore.Args", Found]):
    """After a failure the gateway is the last that was verified: its container, with its files. Without one it is removed.

    Where only the files were another's, they are read anew without ending a stream.

    Returns: restored (whether one runs again), why.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("why, for the history")

    def read(self, args: Args, context: Context) -> Found:
        current, previous = container.current(args.name, context), container.previous(args.name, context)
        verified = good.last(context)
        return Found(current, previous, verified, good.files(context, verified["digest"]) if verified else {})

    def differences(self, args: Args, found: Found) -> list[Change]:
        wanted = found.verified.get("digest") if found.files else None
        return [Change("gateway", "the failed one", wanted)] if found.current or found.previous else []

    def describe(self, args: Args, found: Found) -> dict[str, Any]:
        return {"why": args.why}

    def act(self, args: Args, found: Found, changes: list[Change], context: Context) -> dict[str, Any]:
        ours = found.previous or found.current
        if found.previous and found.current:
            lifecycle.discard(context, found.current["Id"])
        if found.previous:
            lifecycle.rename(context, found.previous, args.name)
        if not found.files or ours["Id"] != found.verified.get("container_id"):
            return _removed(ours, context)
        _bring_back(found, context)
        if found.previous or not found.current["State"]["Running"]:
            lifecycle.start(context, ours["Id"])
        else:
            container.reload(context)
        container.wait_running(args.name, found.verified["digest"], context)
        lifecycle.set_policy(context, ours, found.verified["spec"].get("restart", "no"))
        history.append(context, "gateway restored", container_id=ours["Id"], why=args.why)
        return {"restored": True, "msg": "The last verified gateway is restored."}


def _bring_back(found: Found, context: Context) -> None:
    """Write the verified files to where their container reads them."""
    if place.is_earlier(found.verified["spec"]):
        place.drop(place.state(context).path / place.FILES)  # those of the failed gateway
        place.write(place.folder(context, place.EARLIER), found.files)
    else:
        place.write(place.folder(context, place.FILES), found.files)


def _removed(failed: dict[str, Any], context: Context) -> dict[str, Any]:
    """Remove a failed gateway that no verified one preceded."""
    lifecycle.discard(context, failed["Id"])
    return {"restored": False, "msg": "There was none before; it is removed."}
