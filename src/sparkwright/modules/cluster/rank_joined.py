from __future__ import annotations

import time
from dataclasses import dataclass

from sparkwright.engines.parallel import MemberLog
from sparkwright.errors import Exit, Failed
from sparkwright.host.cluster import rank
from sparkwright.host.containers import containers, log_reader
from sparkwright.host.module import Context, Module
from sparkwright.protocol import cluster as protocol
from sparkwright.protocol.result import Result, arg

POLL_S = 0.5
EVIDENCE_LINES = 8


class RankJoined(Module["RankJoined.Args"]):
    """This member's rank is in its cluster's group: its container runs, and its log says so since its last start.

    A line that says what it is about to join proves nothing, and neither does /health. Waits up to timeout_s; ends at once when
    the container exits (with code 0 too) or another member of the cluster fails.

    Returns: joined, rank, world, transport (rdma, sockets, gloo or unknown), running. With `asks: true` it never fails: what it
    found is the answer.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        rank: int = arg("the rank it should have")
        world: int = arg("how many ranks the group should have")
        timeout_s: float = arg("how long to wait, seconds", default=0.0)
        rdma: bool = arg("whether traffic over sockets is a failure", default=True)
        asks: bool = arg("only tell", default=False)
        start_s: float = arg(
            "how long a start may take, seconds: one that has not joined yet is inconclusive so long, then a failure",
            default=0.0,
        )

    def run(self, args: Args, context: Context) -> Result:
        until_s = time.monotonic() + (0.0 if context.check else args.timeout_s)
        while True:
            inspect = containers.inspect(context.docker(), args.name) or {}
            running = bool(inspect and inspect["State"]["Running"])
            found = rank.of_log(context.docker(), inspect) if inspect else None
            if (found and found.rank is not None) or not running or time.monotonic() >= until_s:
                young = running and time.time() - containers.started_s(inspect) < args.start_s
                return self._judged(args, found, running, context, young=young)
            self._go_on(args, context)
            context.progress(0, 1, text=f"rank {args.rank}: {found.stage or 'starting' if found else 'starting'}")
            time.sleep(POLL_S)

    @staticmethod
    def _go_on(args: Args, context: Context) -> None:
        """Raise Failed if another member failed; if this rank ended by itself, with the reason of that."""
        try:
            context.go_on()
        except Failed:
            end = rank.ended(context.docker(), args.name, args.rank, log=True)
            if end is not None and end.own:
                raise Failed(end.why) from None
            raise

    def _judged(self, args: Args, found: MemberLog | None, running: bool, context: Context, *, young: bool) -> Result:
        """Return the result for what the rank's log says.

        young: it started so recently that it may still be joining.
        """
        wrong = self._wrong(args, found, running)
        data = {
            "joined": not wrong,
            "running": running,
            "rank": found.rank if found else None,
            "world": found.world_size if found else None,
            "transport": found.transport if found else "unknown",
        }
        if not wrong:
            transport = f", over {data['transport']}" if data["transport"] != "unknown" else ""
            return Result(msg=f"rank {args.rank} of {args.world}{transport}", data=data)
        if args.asks:
            return Result(msg=wrong, data=data)
        if young and found is not None and found.rank is None and not found.failure:
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=wrong, data=data)
        lines = log_reader.last_lines(context.docker(), args.name, EVIDENCE_LINES) if found else []
        fix = "`invoke cluster.check` shows the links." if wrong == protocol.over_sockets(args.rank) else ""
        return Result(failed=True, msg=wrong, fix=fix, data={**data, "evidence": lines})

    @staticmethod
    def _wrong(args: Args, found: MemberLog | None, running: bool) -> str:
        if found is None:
            return f"there is no container {args.name}."
        if not running:
            return f"rank {args.rank} exited: {found.failure or 'no known reason in its log.'}"
        if found.rank is None:
            return f"rank {args.rank} has not joined its group; the last stage in its log: {found.stage or 'none'}."
        if misplaced := protocol.misplaced(found.rank, found.world_size, args.rank, args.world):
            return misplaced
        return protocol.over_sockets(args.rank) if args.rdma and found.transport == "sockets" else ""
