"""Modules for the members of a cluster: barriers, a check that ranks have joined, and the secret that health checks share."""

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
from sparkwright.protocol import cluster as cluster_protocol
from sparkwright.protocol.result import Result, arg
from sparkwright.secret import Secret
from sparkwright.visible import one_line

MAX_VALUE_CHARACTERS = 80

POLL_S = 0.5
MAX_EVIDENCE_LINES = 8


class Barrier(Module["Barrier.Args"]):
    """Wait until the runs of all members of the cluster have arrived.

    Members can share values. Values in `compare` must be equal on all members; otherwise the barrier fails for all members
    with the values and their hosts, and with exit code 5 if nothing was changed. A difference in `warn` is only reported in a
    note. A missing or empty value is ignored in `warn`; in `compare` it differs from every other value.

    The barrier fails for all members at once if another member has failed, is lost (silent for 20 s, its host or link down,
    its run killed), was stopped on request or has ended, or does not arrive within timeout_s. The message names that
    member, with its rank, its task and the reason. A failure in the forward phase fails all barriers of that phase, even
    later ones, but no barrier of the rescue phase, in which all members restore their previous servers. In the rescue
    phase, use `ignore_errors: true` if the following tasks must always run, and put a barrier before the last task of the
    rescue. A run that is stopped on request stops waiting.

    With `rank_of`, this member's rank is monitored during the wait, and the barrier fails if it exits. If another member
    fails first, but this member's rank caused the failure, the message contains the rank's reason.

    Each barrier of a play needs its own name. Barriers are skipped in check mode, and in a plan without a cluster.

    Returns: members (shared values by host, in the order of ranks); alike (by the name of a shared value, the hosts whose
    value equals this member's); and about shared values that are true: any (their names), first (by name, the first host
    with it) and count (by name, the number of members with it).
    """

    never_as_root = True

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the barrier's name, the same on all members: letters, digits, spaces, _ . -")
        phase: Literal["forward", "rescue"] = arg("the part of the play: its tasks or its rescue", default="forward")
        timeout_s: float = arg(
            "how long to wait for the other members, seconds", default=cluster_protocol.BARRIER_TIMEOUT_S
        )
        share: dict[str, Any] = arg("values for the other members; at most 48 KiB as JSON", default_factory=dict)
        compare: list[str] = arg("names of shared values that must be equal on all members", default_factory=list)
        fix: str = arg("what to do if they differ", default="")
        warn: list[str] = arg("names of shared values whose differences are only reported", default_factory=list)
        rank_of: str = arg("the container with the rank to monitor; empty: no rank is monitored", default="")
        wait: bool = arg("false to arrive without waiting for the others", default=True)

    def run(self, args: Args, context: Context) -> Result:
        if context.check or context.cluster is None:
            reason = "members do not wait for each other in check mode" if context.check else "this plan has no cluster"
            return Result(skipped=True, msg=reason, data=_result_data({"": args.share}, args.share))
        for key, names in (("compare", args.compare), ("warn", args.warn)):
            if missing := sorted(set(names) - args.share.keys()):
                raise Refused(
                    f"barrier '{args.name}': `{key}` contains names that are not in `share`: {', '.join(missing)}."
                )
        members = self._arrive(args, context, context.cluster)
        if not args.wait:
            return Result(msg="did not wait for the other members")
        if differences := list(_describe_differences(args.compare, members)):
            raise Refused("; ".join(differences) + ".", fix=args.fix)
        for difference in _describe_differences(args.warn, members, known_only=True):
            context.note(f"{difference}. It should be the same on all members.")
        return Result(msg=f"all {len(members)} members", data=_result_data(members, args.share))

    def _arrive(self, args: Args, context: Context, cluster: Any) -> dict[str, Any]:
        if not args.rank_of:
            members: dict[str, Any] = cluster.arrive(args.name, args.share, args.timeout_s, args.phase, wait=args.wait)
            return members

        def raise_if_rank_exited(*, read_log: bool = False) -> None:
            rank_exit = rank.find_exit(context.docker(), args.rank_of, cluster.cluster.rank, read_log=read_log)
            if rank_exit is not None and (rank_exit.is_cause or not read_log):
                raise Failed(rank_exit.message)

        try:
            members = cluster.arrive(
                args.name, args.share, args.timeout_s, args.phase, wait=args.wait, watch=raise_if_rank_exited
            )
        except Failed:
            raise_if_rank_exited(read_log=True)
            raise
        return members


def _result_data(members: dict[str, Any], own_values: dict[str, Any]) -> dict[str, Any]:
    """Return the result's data from the shared values of all members, by host, and of this member."""
    hosts_by_name: dict[str, list[str]] = {}
    for host, shared in members.items():
        for name, value in shared.items():
            if value is True:
                hosts_by_name.setdefault(name, []).append(host)
    return {
        "members": members,
        "any": sorted(hosts_by_name),
        "first": {name: hosts[0] for name, hosts in hosts_by_name.items()},
        "count": {name: len(hosts) for name, hosts in hosts_by_name.items()},
        "alike": {
            name: [host for host, shared in members.items() if _to_json(shared.get(name)) == _to_json(value)]
            for name, value in own_values.items()
        },
    }


def _describe_differences(names: list[str], members: dict[str, Any], *, known_only: bool = False) -> Iterator[str]:
    """Yield a description of each value that differs between members.

    Args:
        known_only: ignore members without the value.
    """
    for name in names:
        values = {host: shared.get(name) for host, shared in members.items() if shared.get(name) or not known_only}
        if len({_to_json(value) for value in values.values()}) > 1:
            described_values = ", ".join(f"{host} {_format_value(value)}" for host, value in values.items())
            yield f"{name.replace('_', ' ')} differs: {described_values}"


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _format_value(value: Any) -> str:
    text = value if isinstance(value, str) else _to_json(value)
    return one_line(text, max_chars=MAX_VALUE_CHARACTERS)


class RankJoined(Module["RankJoined.Args"]):
    """Check that this member's rank has joined its cluster's group, from its running container and the log since its last start.

    Neither a log line that only announces a group nor /health is sufficient. Waits up to timeout_s, but no longer if the
    container exits (even with code 0) or another member of the cluster fails.

    Returns: joined, rank, world, transport (rdma, sockets, gloo or unknown), running. With `asks: true` the state is only
    reported, and a rank that has not joined is not a failure.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        rank: int = arg("the expected rank")
        world: int = arg("the expected number of ranks in the group")
        timeout_s: float = arg("how long to wait, seconds", default=0.0)
        rdma: bool = arg("true if traffic over sockets is a failure", default=True)
        asks: bool = arg("report the state without failing", default=False)
        start_s: float = arg(
            "how long a start may take, seconds; until then a rank that has not joined is inconclusive, afterwards a failure",
            default=0.0,
        )

    def run(self, args: Args, context: Context) -> Result:
        deadline_s = time.monotonic() + (0.0 if context.check else args.timeout_s)
        while True:
            container = containers.inspect(context.docker(), args.name) or {}
            is_running = bool(container and container["State"]["Running"])
            member_log = rank.read_member_log(context.docker(), container) if container else None
            if (member_log and member_log.rank is not None) or not is_running or time.monotonic() >= deadline_s:
                may_be_joining = is_running and time.time() - containers.started_s(container) < args.start_s
                return self._build_result(args, member_log, is_running, context, may_be_joining=may_be_joining)
            self._check_other_members(args, context)
            stage = (member_log and member_log.stage) or "starting"
            context.progress(0, 1, text=f"rank {args.rank}: {stage}")
            time.sleep(POLL_S)

    @staticmethod
    def _check_other_members(args: Args, context: Context) -> None:
        """Raise Failed if another member failed; with this rank's reason if this rank caused the failure."""
        try:
            context.check_failures()
        except Failed:
            rank_exit = rank.find_exit(context.docker(), args.name, args.rank, read_log=True)
            if rank_exit is not None and rank_exit.is_cause:
                raise Failed(rank_exit.message) from None
            raise

    def _build_result(
        self, args: Args, member_log: MemberLog | None, is_running: bool, context: Context, *, may_be_joining: bool
    ) -> Result:
        problem = self._find_problem(args, member_log, is_running)
        data = {
            "joined": not problem,
            "running": is_running,
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
        lines = log_reader.read_last_lines(context.docker(), args.name, MAX_EVIDENCE_LINES) if member_log else []
        is_slow = problem == cluster_protocol.describe_socket_traffic(args.rank)
        fix = "`invoke cluster.check` shows the links." if is_slow else ""
        return Result(failed=True, msg=problem, fix=fix, data={**data, "evidence": lines})

    @staticmethod
    def _find_problem(args: Args, member_log: MemberLog | None, is_running: bool) -> str:
        if member_log is None:
            return f"there is no container {args.name}."
        if not is_running:
            return f"rank {args.rank} exited: {member_log.failure or 'no known reason in its log.'}"
        if member_log.rank is None:
            stage = member_log.stage or "none"
            return f"rank {args.rank} has not joined its group; the last stage in its log: {stage}."
        if wrong_rank := cluster_protocol.describe_wrong_rank(
            member_log.rank, member_log.world_size, args.rank, args.world
        ):
            return wrong_rank
        return (
            cluster_protocol.describe_socket_traffic(args.rank)
            if args.rdma and member_log.transport == "sockets"
            else ""
        )


class KeepHealToken(Module["KeepHealToken.Args"]):
    """Store the secret that the health checks of a cluster's members use to authenticate each other before a restart.

    The request contains it as the secret HEAL_TOKEN. A request without it deletes the stored secret.
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        token = context.secrets.get(server_keys.HEAL_TOKEN_SECRET, Secret(""))
        if token and not server_keys.HEAL_TOKEN_PATTERN.fullmatch(token.reveal()):
            raise Refused(f"invalid request: the secret {server_keys.HEAL_TOKEN_SECRET} is not 64 hexadecimal digits.")
        if token == server_keys.load_heal_token(context.state):
            return Result()
        if not context.check and token:
            server_keys.save_heal_token(context.state, token)
        elif not context.check:
            context.state.remove(server_keys.HEAL_TOKEN_RECORD)
        return Result(changed=True, msg="renewed" if token else "removed")
