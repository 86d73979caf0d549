from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright import defaults, units
from sparkwright.engines.engine import Engine
from sparkwright.host.containers import container_labels, containers, replacement, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states, history
from sparkwright.measure import server_metrics
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import count

if TYPE_CHECKING:
    from sparkwright.host.gateway.server_operations import Gateway

POLL_S = 0.2


class Drain(Module["Drain.Args"]):
    """The requests that the server is answering may end before it is stopped, as long as that takes at most drain_s.

    No engine here has a way to refuse new requests, but the gateways in front of it have: each sends this server nothing more,
    until `gateway_return`. A gateway that does not answer is named and keeps nothing from going on. Without one a busy server may
    never be idle. After drain_s it goes on and says how many requests are cut; behind a gateway the history says so too. A server
    that tells nothing of its requests is not waited for, and that is said.

    In check mode it says what a restart costs: the requests running now and how long the last start took.

    Returns: running (requests, running and waiting, at the end; null when not known), waited_s.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        drain_s: float = arg(
            "how long to wait for requests to finish, seconds; 0: do not wait", default=defaults.DRAIN_S
        )
        gateways: list[dict[str, Any]] = arg(
            "the gateways in front of this host: name, address, port, tls, and server, as it is called there",
            default_factory=list,
        )
        interim: str = arg("the interim server that answers meanwhile; empty for none", default="")

    def run(self, args: Args, context: Context) -> Result:
        container = replacement.current(context, args.name)
        runs = bool(container) and bool(container["State"]["Running"])
        if context.check and runs:
            running = _of_container(container, context)()
            return Result(msg=_cost(running, context, args.interim), data={"running": running, "waited_s": 0.0})
        gateways = _drained(args.gateways, context) if args.gateways and not context.check else []
        if not runs:
            _rest(gateways, context)
            return Result(msg="no server is running", data={"running": 0, "waited_s": 0.0})
        started_s, running_requests = time.monotonic(), _of_container(container, context)
        while True:
            running = _both(running_requests(), gateways, context)
            waited_s = time.monotonic() - started_s
            if not running or waited_s >= args.drain_s:
                break
            context.progress(0, running, text=f"draining, {waited_s:.0f} of {args.drain_s:g} s")
            time.sleep(min(POLL_S, max(0.0, args.drain_s - waited_s)))
        _rest(gateways, context)
        if running and gateways:
            history.append(context, "requests cut", why=_ended(running, waited_s))
        return Result(msg=_ended(running, waited_s), data={"running": running, "waited_s": round(waited_s, 1)})


def _drained(given: Sequence[dict[str, Any]], context: Context) -> list[Gateway]:
    """Drain this host at its gateways and return them; whatever a gateway did not do is noted."""
    from sparkwright.host.gateway import drain_record
    from sparkwright.host.gateway.server_operations import Gateway

    gateways = [Gateway.of(row) for row in given]
    for problem in drain_record.drain(context.state, gateways, context.run_id):
        context.note(f"{problem}.")
    return gateways


def _rest(gateways: Sequence[Gateway], context: Context) -> None:
    """Make the gateways stop checking the server."""
    if gateways:
        from sparkwright.host.gateway import drain_record

        drain_record.rest(context.state, gateways)


def _both(running: int | None, gateways: Sequence[Gateway], context: Context) -> int | None:
    """Return the requests by the server's own count, or by its gateways' if that is larger: one may queue before the server."""
    if not gateways:
        return running
    from sparkwright.host.gateway import drain_record

    there = drain_record.running(context.state, gateways)
    return there or running if running is None else max(running, there)


def _of_container(container: dict[str, Any], context: Context) -> Callable[[], int | None]:
    """Return a function that returns the number of requests this server is processing; None if unknown."""
    url = containers.url_of(container)
    engine, key = container_labels.engine_of_container(container), server_key.of_container(context.state, container)
    return lambda: requests_of(engine, url, key)


def requests_of(engine: Engine, url: str, key: str) -> int | None:
    """Return the number of requests that a server runs or queues; None if its metrics do not report it."""
    busy = server_metrics.busy(server_metrics.read(engine.http, url, key)[0]) if url else None
    return None if busy is None else int(busy)


def _ended(running: int | None, waited_s: float) -> str:
    if running is None:
        return "number of running requests unknown; they are aborted"
    if running == 0:
        return "no requests running" + (f", after {waited_s:.1f} s" if waited_s >= 0.5 else "")
    return f"{count(running, 'request')} aborted after {waited_s:.0f} s"


def _cost(running: int | None, context: Context, interim: str = "") -> str:
    now = f"{count(running, 'request')} running now" if running is not None else "number of running requests unknown"
    if interim:
        return f"{interim} answers meanwhile; {now}"
    ready_s = (good_states.last(context.state).get("measured") or {}).get("ready_s")
    unknown = "for an unknown time (no start measured yet)"
    long = unknown if ready_s is None else f"for about {units.about(ready_s)} (last start)"
    return f"server down {long}; {now}"
