from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, containers, lifecycle
from sparkwright.host.memory import footprint
from sparkwright.host.module import Context, Module
from sparkwright.host.records import history
from sparkwright.protocol.result import Change, Result, arg

#: verdicts of `smoke_test` that a stale cache may cause
SLOW = ("regression", "misconfigured")


class MoveCacheAside(Module["MoveCacheAside.Args"]):
    """A server that started with a compile cache and is too slow is stopped, and its cache moved aside: the next start is cold.

    A stale cache is a known cause of a server that is several times too slow. What was moved aside stays beside the folder of its
    key, for looking at, until the next one comes or `invoke caches.prune`. The history says what was done and why.

    Returns: tok_per_s (of the warm start), aside (the folder). Fails with `why` when the start was a cold one, there is no cache,
    or the throughput test did not find the server slow: a cold start would change nothing then.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        why: str = arg("what was wrong with the server, for the history")
        fix: str = arg("what to do about it, where nothing can be tried here", default="")
        verdict: str = arg("the verdict of the throughput test", default="")
        tok_per_s: float | None = arg("the rate that was measured", default=None)
        stop_timeout_s: int = arg("seconds until it is killed", default=defaults.STOP_S)

    def run(self, args: Args, context: Context) -> Result:
        found = containers.inspect(context.docker(), args.name) or {}
        if args.verdict not in SLOW or not found or not compile_caches.started_warm(context, found):
            raise Failed(args.why, fix=args.fix)
        return self._move_aside(args, found, context)

    def _move_aside(self, args: Args, found: dict[str, Any], context: Context) -> Result:
        footprint.before_stop(context, found)
        lifecycle.stop(context, found, args.stop_timeout_s)
        key = compile_caches.mounted(found)
        aside = compile_caches.move_aside(context, found, args.why)
        if aside is None:
            raise Failed(args.why, fix=args.fix)
        why = f"{args.why} It had started with a compile cache, now in {aside}"
        history.append(context, "cache moved aside", container_id=found["Id"], why=why)
        data = {"tok_per_s": args.tok_per_s, "aside": str(aside)}
        change = Change("compile cache", key, f"{key}/{compile_caches.ASIDE}", args.why)
        return Result(changed=True, diff=[change], msg="stopped; the next start compiles anew", data=data)
