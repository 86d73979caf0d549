"""Modules about the members of a cluster: they wait for each other, join, and share a secret for their checks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines.parallel import MemberLog
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.host.cluster import rank
from sparkwright.host.containers import containers, log_reader
from sparkwright.host.module import Context, Module
from sparkwright.host.records import server_keys
from sparkwright.protocol import cluster as protocol
from sparkwright.protocol.result import Result, arg
from sparkwright.secret import Secret
from sparkwright.visible import one_line

MAX_VALUE_CHARACTERS = 80


class Barrier(Module["Barrier.Args"]):
    """Wait until the runs of all members of the cluster have arrived.

    Members can share values. Values in `compare` must be equal on all members: a difference fails the barrier for all, with
    the values and their hosts, and exit code 5 if nothing was touched. A difference in `warn` is only reported, in a note.
    An unknown value (null, empty) differs from none.

    The barrier fails for all members at once if another member has failed, is lost (silent for 20 s, its host or link down,
    its run killed), was stopped on request or has ended, or does not arrive within timeout_s; the message names it with its
    rank, its task and the reason. A failure in the forward phase fails all barriers of that phase, including later ones, but
    none of the rescue phase, in which all members restore their previous servers. In the rescue phase, use `ignore_errors:
    true` if the following tasks must run in any case, and put a barrier before the task that ends the rescue. Stopping a run
    on request ends its wait.

    rank_of: during the wait this member's own rank is monitored, and the barrier fails if it ends. If another member fails
    first and this one's rank ended on its own, that is what this member reports.

    Each barrier of a play has its own name. It is skipped in check mode, and in a plan without a cluster.

    Returns: members (shared values by host, in the order of ranks); for shared values that are true: any (names that are
    true on at least one member), first (by name, the first host), count (by name, the number of members); alike (by name of
    a shared value, the hosts that share the same value as this member).
    """

    never_as_root = True

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the barrier's name, the same on all members: letters, digits, spaces, _ . -")
        phase: Literal["forward", "rescue"] = arg("forward, or rescue in a rescue", default="forward")
        timeout_s: float = arg("how long to wait for the other members, seconds", default=protocol.BARRIER_TIMEOUT_S)
        share: dict[str, Any] = arg("values for the other members; at most 48 KiB as JSON", default_factory=dict)
        compare: list[str] = arg("names of shared values that must be equal on all members", default_factory=list)
        fix: str = arg("what to do if they differ", default="")
        warn: list[str] = arg("names of shared values whose differences are only reported", default_factory=list)
        rank_of: str = arg("name of the container whose rank is monitored; empty: none", default="")
        wait: bool = arg("false: let the others pass, and continue without waiting", default=True)

    def run(self, args: Args, context: Context) -> Result:
        if context.check or context.cluster is None:
            why = "check mode: the members' runs do not meet" if context.check else "this plan is of no cluster"
            return Result(skipped=True, msg=why, data=_result_data({"": args.share}, args.share))
        for key, names in (("compare", args.compare), ("warn", args.warn)):
            if missing := sorted(set(names) - args.share.keys()):
                message = f"`{key}` names what this member does not share: {', '.join(missing)}."
                raise Refused(f"barrier '{args.name}': {message}")
        members = self._arrive(args, context, context.cluster)
        if not args.wait:
            return Result(msg="not waited for the others")
        if differences := list(_describe_differences(args.compare, members)):
            raise Refused("; ".join(differences) + ".", fix=args.fix)
        for difference in _describe_differences(args.warn, members, known_only=True):
            context.note(f"{difference}. Members should have the same.")
        return Result(msg=f"all {len(members)} members", data=_result_data(members, args.share))

    def _arrive(self, args: Args, context: Context, cluster: Any) -> dict[str, Any]:
        if not args.rank_of:
            members: dict[str, Any] = cluster.arrive(args.name, args.share, args.timeout_s, args.phase, wait=args.wait)
            return members

        def watch(*, log: bool = False) -> None:
            end = rank.find_exit(context.docker(), args.rank_of, cluster.cluster.rank, read_log=log)
            if end is not None and (end.own or not log):
                raise Failed(end.why)

        try:
            members = cluster.arrive(args.name, args.share, args.timeout_s, args.phase, wait=args.wait, watch=watch)
        except Failed:
            watch(log=True)
            raise
        return members


def _result_data(members: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the result's data from the values that the members share. own: the values of this member."""
    alike = {
        name: [host for host, member in members.items() if _to_json(member.get(name)) == _to_json(value)]
        for name, value in own.items()
    }
    hosts_by_name: dict[str, list[str]] = {}
    for host, shared in members.items():
        for name in (name for name, value in shared.items() if value is True):
            hosts_by_name.setdefault(name, []).append(host)
    first = {name: hosts[0] for name, hosts in hosts_by_name.items()}
    return {
        "members": members,
        "any": sorted(hosts_by_name),
        "first": first,
        "count": {name: len(hosts) for name, hosts in hosts_by_name.items()},
        "alike": alike,
    }


def _describe_differences(names: list[str], members: dict[str, Any], *, known_only: bool = False) -> Iterator[str]:
    """Yield a phrase for each value that is not the same on all members.

    known_only: compare only the members that have a value.
    """
    for name in names:
        values = {host: shared.get(name) for host, shared in members.items() if shared.get(name) or not known_only}
        if len({_to_json(value) for value in values.values()}) > 1:
            yield (
                f"{name.replace('_', ' ')} differs: "
                f"{', '.join(f'{host} {_format_value(value)}' for host, value in values.items())}"
            )


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else _to_json(value)
    return one_line(text, max_chars=MAX_VALUE_CHARACTERS)


POLL_S = 0.5
EVIDENCE_LINES = 8


class RankJoined(Module["RankJoined.Args"]):
    """Check that this member's rank is in its cluster's group: its container runs, and the log of its last start shows it.

    A log line that only announces a group proves nothing, and neither does /health. Waits up to timeout_s; ends at once if
    the container exits (even with code 0) or another member of the cluster fails.

    Returns: joined, rank, world, transport (rdma, sockets, gloo or unknown), running. With `asks: true` it never fails: the
    state is the result.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        rank: int = arg("the rank it should have")
        world: int = arg("how many ranks the group should have")
        timeout_s: float = arg("how long to wait, seconds", default=0.0)
        rdma: bool = arg("whether traffic over sockets is a failure", default=True)
        asks: bool = arg("only report", default=False)
        start_s: float = arg(
            "how long a start may take, seconds; until then a rank that has not joined is inconclusive, afterwards a failure",
            default=0.0,
        )

    def run(self, args: Args, context: Context) -> Result:
        until_s = time.monotonic() + (0.0 if context.check else args.timeout_s)
        while True:
            inspect = containers.inspect(context.docker(), args.name) or {}
            running = bool(inspect and inspect["State"]["Running"])
            member_log = rank.read_member_log(context.docker(), inspect) if inspect else None
            if (member_log and member_log.rank is not None) or not running or time.monotonic() >= until_s:
                may_be_joining = running and time.time() - containers.started_s(inspect) < args.start_s
                return self._evaluate(args, member_log, running, context, may_be_joining=may_be_joining)
            self._check_other_members(args, context)
            context.progress(
                0, 1, text=f"rank {args.rank}: {member_log.stage or 'starting' if member_log else 'starting'}"
            )
            time.sleep(POLL_S)

    @staticmethod
    def _check_other_members(args: Args, context: Context) -> None:
        """Raise Failed if another member failed; if this rank ended by itself, with the reason of that."""
        try:
            context.check_failures()
        except Failed:
            end = rank.find_exit(context.docker(), args.name, args.rank, read_log=True)
            if end is not None and end.own:
                raise Failed(end.why) from None
            raise

    def _evaluate(
        self, args: Args, member_log: MemberLog | None, running: bool, context: Context, *, may_be_joining: bool
    ) -> Result:
        """Return the result for what the rank's log says.

        may_be_joining: it started so recently that it may still be joining.
        """
        problem = self._find_problem(args, member_log, running)
        data = {
            "joined": not problem,
            "running": running,
            "rank": member_log.rank if member_log else None,
            "world": member_log.world_size if member_log else None,
            "transport": member_log.transport if member_log else "unknown",
        }
        if not problem:
            transport = f", over {data['transport']}" if data["transport"] != "unknown" else ""
            return Result(msg=f"rank {args.rank} of {args.world}{transport}", data=data)
        if args.asks:
            return Result(msg=problem, data=data)
        if may_be_joining and member_log is not None and member_log.rank is None and not member_log.failure:
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=problem, data=data)
        lines = log_reader.read_last_lines(context.docker(), args.name, EVIDENCE_LINES) if member_log else []
        fix = (
            "`invoke cluster.check` shows the links." if problem == protocol.describe_socket_traffic(args.rank) else ""
        )
        return Result(failed=True, msg=problem, fix=fix, data={**data, "evidence": lines})

    @staticmethod
    def _find_problem(args: Args, member_log: MemberLog | None, running: bool) -> str:
        if member_log is None:
            return f"there is no container {args.name}."
        if not running:
            return f"rank {args.rank} exited: {member_log.failure or 'no known reason in its log.'}"
        if member_log.rank is None:
            return (
                f"rank {args.rank} has not joined its group; the last stage in its log: {member_log.stage or 'none'}."
            )
        if wrong_rank := protocol.describe_wrong_rank(member_log.rank, member_log.world_size, args.rank, args.world):
            return wrong_rank
        return protocol.describe_socket_traffic(args.rank) if args.rdma and member_log.transport == "sockets" else ""


class KeepHealToken(Module["KeepHealToken.Args"]):
    """Store the secret with which health checks of a cluster's members authenticate each other before a restart.

    It arrives with the request, as the secret HEAL_TOKEN, and replaces the previous one. If there is none, none is stored.
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        token = context.secrets.get(server_keys.HEAL_TOKEN_SECRET, Secret(""))
        if context.check:
            return Result(changed=True)
        if not token:
            context.state.remove(server_keys.HEAL_TOKEN_RECORD)
            return Result()
        if not server_keys.HEAL_TOKEN_PATTERN.fullmatch(token.reveal()):
            raise Refused(f"invalid request: the secret {server_keys.HEAL_TOKEN_SECRET} is not 64 hexadecimal digits.")
        server_keys.save_heal_token(context.state, token)
        return Result(changed=True, msg="renewed")
