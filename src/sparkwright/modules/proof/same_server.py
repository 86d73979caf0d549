from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Inconclusive
from sparkwright.host.containers import containers, engine_of
from sparkwright.host.containers.running_server import start_of
from sparkwright.host.module import Context, Module
from sparkwright.measure import http_probe
from sparkwright.protocol.result import Result, arg

SETTLES_S = 10.0
POLL_S = 0.1


class SameServer(Module["SameServer.Args"]):
    """The container is the one that `inspect_server` found, and nobody stopped or started it since.

    One that its own policy started again is the same: it exited by itself, and what was found of that counts.

    Inconclusive (exit 4) when it was replaced, removed or restarted meanwhile: of which server the checks before it speak is
    not known.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        base_url: str = arg("the server, as http://127.0.0.1:8000; empty for a worker of a cluster, which has none")
        start: dict[str, Any] = arg("its id, started and restarts, as `inspect_server` returns them")

    def run(self, args: Args, context: Context) -> Result:
        what = _what_happened(args, context)
        if not what:
            return Result()
        raise Inconclusive(f"{args.name} was {what} during the checks: inconclusive.", fix="Run the command again.")


def _what_happened(args: SameServer.Args, context: Context) -> str:
    """Return "replaced", "removed", "restarted" or "".

    A server that does not answer may be about to be replaced: this waits for it.
    """
    deadline_s = time.monotonic() + SETTLES_S
    http = engine_of.at(context, args.base_url).http if args.base_url else None
    while True:
        # first, for what answers now may have been started since the container was inspected
        answers = http is None or http_probe.ask(args.base_url, http.health, timeout_s=http.health_s).status
        settled = answers or time.monotonic() > deadline_s
        found = containers.inspect(context.docker(), args.name)
        now = start_of(found) if found else {}
        if now.get("id") != args.start["id"]:
            return "replaced" if found else "removed"
        if now["started"] != args.start["started"] and now["restarts"] <= args.start["restarts"]:
            return "restarted"
        if settled:
            return ""
        time.sleep(POLL_S)
