"""Modules about a cluster: its fabric before anything changes, and members that wait for each other."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Literal

from sparkwright.doctor import fabric
from sparkwright.doctor.checks import network as check
from sparkwright.doctor.host import Host
from sparkwright.engines.parallel import MemberLog
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.host.cluster import rank
from sparkwright.host.containers import containers, log_reader, replacement
from sparkwright.host.module import Context, Module
from sparkwright.protocol import cluster as protocol
from sparkwright.protocol.container import CLUSTER_LABEL, RANK_LABEL
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

#: the loopback interface, which tests use
LOOPBACK = "lo"


class FabricReady(Module["FabricReady.Args"]):
    """Check that the host's fabric has what the ranks of a cluster need, while the previous servers still serve. Changes nothing.

    Looks at: the interfaces and the address that the host's file names, the adapters with a RoCE v2 GID on each half of the port,
    the kernel's memory for RDMA, the way to each other member with a frame of the whole MTU, the master port (held by what), and
    ranks of other clusters that still run here. All problems are listed; one refuses the run. What is only slower is told: a link
    of 100 Gb/s, one half of the port down, MTU 1500. Of an IPv6 address neither GID nor way is checked.

    Returns: firmware (of the named interfaces' adapters), mtu (of the interfaces); each is empty where it is not known.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name: what it holds, the start takes over")
        address: str = arg("this host's own address on the fabric")
        interfaces: list[str] = arg("its interfaces, the one of the address first")
        adapters: list[str] = arg("their RDMA adapters", default_factory=list)
        peers: list[str] = arg("the addresses of the other members", default_factory=list)
        port: int = arg("the port on which the ranks will meet here; 0: they meet on another member", default=0)
        host: str = arg("the host's name, for sentences", default="")

    def run(self, args: Args, context: Context) -> Result:
        host = Host(context, getpass.getuser())
        links = list(_of_links(args, host))
        problems = [*_interfaces(args, host), *_adapters(args, host), *_port(args, context), *_leftovers(args, context)]
        problems += [
            (f"{shown}.", fix and f"On the host: `{fix}`.") for verdict, shown, fix in links if verdict == "bad"
        ]
        ways = [] if problems else [fabric.to(host, IPv4Address(peer)) for peer in filter(_is_ipv4, args.peers)]
        problems += [problem for way in ways for problem in _problems(args, way)]
        if problems:
            evidence, fix = problems[0]
            data = {"evidence": [f"{problem} {how}".rstrip() for problem, how in problems[1:]]}
            return Result(failed=True, exit=Exit.REFUSED, msg=evidence, fix=fix, data=data)
        for verdict, shown, _ in links:
            if verdict == "warning":
                context.note(f"{shown}.")
        return _in_order(args, host, ways)


def _in_order(args: FabricReady.Args, host: Host, ways: Sequence[fabric.Path]) -> Result:
    """Return the result of a fabric without problems, with the data that the members compare."""
    reached = [way.peer for way in ways if way.reached]
    untried = [peer for peer in args.peers if peer not in reached]
    shown = f"; reaches {', '.join(reached)}" if reached else ""
    shown += f"; could not try the way to {', '.join(untried)}" if untried else ""
    used = [link for link in fabric.links(host) if link.interface in args.interfaces]
    data = {"firmware": _each(link.firmware for link in used), "mtu": _each(link.mtu for link in used)}
    return Result(msg=f"{args.interfaces[0]} is there for {args.address}{shown}", data=data)


def _each(found: Iterable[object]) -> str:
    return "/".join(sorted({str(item) for item in found if item}))


def _is_ipv4(address: str) -> bool:
    return ":" not in address


def _interfaces(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    there = host.names_in(fabric.INTERFACES)
    correct = f"Correct `fabric.interfaces` in hosts/{args.host}.yml; `invoke cluster.inspect` shows the links."
    missing = [name for name in args.interfaces if name not in there]
    if missing:
        shown = ", ".join(one_line(name, at_most=20) for name in there if name != LOOPBACK)
        yield f"no interface {missing[0]} on {args.host}; there are: {shown or 'none'}.", correct
        return
    down = [
        interface
        for interface in args.interfaces
        if (host.read(f"{fabric.INTERFACES}/{interface}/operstate") or "").strip() == "down"
    ]
    for name in down:
        if name == args.interfaces[0] or not fabric.only_slower(name, fabric.links(host)):
            yield f"the interface {name} is down.", f"On the host: `sudo ip link set {name} up`."
    rows = fabric.addresses_of(host) if _is_ipv4(args.address) else {}
    found = [item.partition("/")[0] for item in rows.get(args.interfaces[0], ())]
    if rows and args.address not in found and args.interfaces[0] != LOOPBACK:
        shown = ", ".join(found) or "no IPv4 address"
        yield (
            f"{args.interfaces[0]} has {shown}, not {args.address}.",
            f"Correct `fabric.address` in hosts/{args.host}.yml.",
        )


def _adapters(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    there = host.names_in(fabric.ADAPTERS)
    for name in args.adapters:
        if name not in there:
            shown = ", ".join(one_line(item, at_most=20) for item in there) or "none"
            yield (
                f"no RDMA adapter {name} on {args.host}; there are: {shown}.",
                f"Set `fabric.adapters` in hosts/{args.host}.yml.",
            )
    first = args.adapters[0] if args.adapters else ""
    if first in there and _is_ipv4(args.address) and fabric.gid_index(host, first, args.address) is None:
        yield f"{first} has no RoCE v2 GID for {args.address}.", "`invoke cluster.check` shows the links."


def _of_links(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield the findings of `doctor` about the ports in use and the memory for RDMA: verdict, evidence, fix."""
    if not args.adapters:
        return
    for links in fabric.ports(fabric.links(host)).values():
        if any(link.interface in args.interfaces for link in links):
            rows = (row[:3] for row in check.problems_of(links))
            yield from (row for row in rows if f" GID for {args.address}:" not in row[1])  # _adapters says that
    yield from ((finding.verdict, finding.evidence, "") for finding in check.memory(host))


def _port(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    own = replacement.current(context, args.name) if args.port else {}
    if not args.port or (own and own["State"]["Running"] and str(args.port) in own["Config"]["Cmd"]):
        return  # the rank that holds it is stopped before another starts
    if holder := containers.who_listens(context.docker(), args.port):
        fix = "Stop that, or use another port with `port:` of the cluster in hosts/groups.yml."
        yield f"port {args.port}, on which the ranks meet, is in use by {holder}.", fix


def _leftovers(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    replaced_id = replacement.current(context, args.name).get("Id")
    for container in context.docker().containers.list(filters={"label": RANK_LABEL}, ignore_removed=True):
        if container.id != replaced_id:
            name, cluster = one_line(str(container.name)), one_line(str(container.labels.get(CLUSTER_LABEL, "")))
            yield f"{name} still runs here, a rank of the cluster {cluster}.", containers.to_stop_a_rank(name)


def _problems(args: FabricReady.Args, way: fabric.Path) -> Iterator[tuple[str, str]]:
    """Yield the problems of the path to another member, each with its fix."""
    if way.interface and way.interface not in args.interfaces:
        yield (
            f"{way.peer} is reached over {way.interface}, not over the fabric.",
            f"On the host: `ip route get {way.peer}`.",
        )
    elif way.reached is False:
        fix = "Set the same MTU on both hosts and on the switch; `invoke cluster.check` tries each way."
        yield f"a frame of {way.mtu} bytes does not reach {way.peer} over {way.interface}.", fix


#: length of a value in a message; a digest has 71
SHOWN_CHARACTERS = 80


class Barrier(Module["Barrier.Args"]):
    """The runs of all members of the cluster have arrived here; before that, none goes on.

    Each member can share some values with the others, and values that must be equal everywhere are compared: a difference fails
    the barrier for all, with the values and their hosts; exit code 5 while nothing was touched. Another difference is only told,
    in a note; a member of which a value is not known (null, empty) differs from none.

    It fails for all, at once, when another member has failed, is lost (silent for 20 s, its host or link down, its run
    killed), was stopped on request or has ended, and when one does not come within timeout_s; the message names it with its
    rank, its task and its reason. A failure in the forward phase fails all barriers of that phase, later ones too, and none of
    the rescue phase, where all members restore what was there before. There, give it `ignore_errors: true` where what follows
    has to be done in any case, and let a barrier come before the task that ends the rescue. A run that is stopped on request
    ends its waiting.

    rank_of: while it waits, this member's own rank is watched, and fails it when it ends. Where another member fails first, and
    this one's rank ended by itself, that is what this member reports.

    Each barrier of a play has its own name. Skipped in check mode, and in a plan that is of no cluster.

    Returns: members (what each shares, by host, in the order of ranks); of the shared values that are true: any (the names of
    those that are so on one member at least), first (by name, the first host), count (by name, on how many); alike (by name of
    a shared value, the hosts that share the same as this member).
    """

    never_as_root = True

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the barrier's name, the same on all members: letters, digits, spaces, _ . -")
        phase: Literal["forward", "rescue"] = arg("forward, or rescue in a rescue", default="forward")
        timeout_s: float = arg("how long to wait for the other members, seconds", default=protocol.BARRIER_S)
        share: dict[str, Any] = arg("what this member tells the others; 48 KiB as JSON", default_factory=dict)
        compare: list[str] = arg("names of shared values that must be equal on all members", default_factory=list)
        fix: str = arg("what to do where they are not", default="")
        warn: list[str] = arg("names of shared values whose difference is only told", default_factory=list)
        rank_of: str = arg("the name of the container whose rank has joined; empty: none has", default="")
        wait: bool = arg("false: let the others pass, and go on at once", default=True)

    def run(self, args: Args, context: Context) -> Result:
        if context.check or context.cluster is None:
            why = "check mode: the members' runs do not meet" if context.check else "this plan is of no cluster"
            return Result(skipped=True, msg=why, data=_data({"": args.share}, args.share))
        for key, names in (("compare", args.compare), ("warn", args.warn)):
            if missing := sorted(set(names) - args.share.keys()):
                message = f"`{key}` names what this member does not share: {', '.join(missing)}."
                raise Refused(f"barrier '{args.name}': {message}")
        members = self._arrived(args, context, context.cluster)
        if not args.wait:
            return Result(msg="not waited for the others")
        if differences := list(_differences(args.compare, members)):
            raise Refused("; ".join(differences) + ".", fix=args.fix)
        for difference in _differences(args.warn, members, known=True):
            context.note(f"{difference}. Members should have the same.")
        return Result(msg=f"all {len(members)} members", data=_data(members, args.share))

    def _arrived(self, args: Args, context: Context, cluster: Any) -> dict[str, Any]:
        if not args.rank_of:
            found: dict[str, Any] = cluster.arrive(args.name, args.share, args.timeout_s, args.phase, wait=args.wait)
            return found

        def watch(*, log: bool = False) -> None:
            end = rank.ended(context.docker(), args.rank_of, cluster.cluster.rank, log=log)
            if end is not None and (end.own or not log):
                raise Failed(end.why)

        try:
            found = cluster.arrive(args.name, args.share, args.timeout_s, args.phase, wait=args.wait, watch=watch)
        except Failed:
            watch(log=True)
            raise
        return found


def _data(members: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the result's data from the values that the members share. own: the values of this member."""
    alike = {
        name: [host for host, member in members.items() if _json(member.get(name)) == _json(value)]
        for name, value in own.items()
    }
    found: dict[str, list[str]] = {}
    for host, shared in members.items():
        for name in (name for name, value in shared.items() if value is True):
            found.setdefault(name, []).append(host)
    first = {name: hosts[0] for name, hosts in found.items()}
    return {
        "members": members,
        "any": sorted(found),
        "first": first,
        "count": {name: len(hosts) for name, hosts in found.items()},
        "alike": alike,
    }


def _differences(names: list[str], members: dict[str, Any], *, known: bool = False) -> Iterator[str]:
    """Yield a phrase for each value that is not the same on all members.

    known: compare only the members that have a value.
    """
    for name in names:
        values = {host: shared.get(name) for host, shared in members.items() if shared.get(name) or not known}
        if len({_json(value) for value in values.values()}) > 1:
            yield f"{name.replace('_', ' ')} differs: {', '.join(f'{host} {_shown(value)}' for host, value in values.items())}"


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    return one_line(text, at_most=SHOWN_CHARACTERS)


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
