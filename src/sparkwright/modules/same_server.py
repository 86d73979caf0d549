"""The `same_server` module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Inconclusive
from sparkwright.host.containers import containers
from sparkwright.host.containers.running import start_of
from sparkwright.modules.base import Context, Module, Result, arg


class SameServer(Module["SameServer.Args"]):
    """The container is the one that `inspect_server` found, and nobody stopped or started it since.

    One that its own policy started again is the same: it died by itself, and what was found of that counts.

    Inconclusive (exit 4) when it was replaced, removed or restarted meanwhile: of which server the checks before it speak is
    not known.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        start: dict[str, Any] = arg("its id, started and restarts, as `inspect_server` returns them")

    def run(self, args: Args, context: Context) -> Result:
        found = containers.inspect(context.docker(), args.name)
        now = start_of(found) if found else {}
        if now.get("id") != args.start["id"]:
            what = "replaced" if found else "removed"
        elif now["started"] != args.start["started"] and now["restarts"] <= args.start["restarts"]:
            what = "restarted"
        else:
            return Result()
        raise Inconclusive(
            f"{args.name} was {what} while it was looked at: nothing is proved.", fix="Give the command again."
        )
