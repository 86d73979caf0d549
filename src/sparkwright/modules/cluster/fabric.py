"""Modules about the fast links of a cluster's hosts."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any, Literal

from sparkwright.doctor import fabric
from sparkwright.doctor.checks import network as check
from sparkwright.doctor.host import Host, version_in
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import containers, replacement
from sparkwright.host.machine import Completed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.container import CLUSTER_LABEL, RANK_LABEL
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

#: the loopback interface, which tests use
LOOPBACK = "lo"


class FabricReady(Module["FabricReady.Args"]):
    """Check that the host's fabric has what the ranks of a cluster need. Changes nothing.

    It runs while the previous servers still serve. Checks: the interfaces and the address in the host's file, the adapters
    with a RoCE v2 GID on each half of the port, the kernel's memory for RDMA, the path to each other member with a frame of
    the full MTU, the master port (and what uses it), and ranks of other clusters that still run here. All problems are
    listed; any of them refuses the run. Problems that only reduce speed are reported: a link of 100 Gb/s, one half of the
    port down, MTU 1500. For an IPv6 address neither GID nor path is checked.

    Returns: firmware (of the named interfaces' adapters), mtu (of the interfaces); each is empty if unknown.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name; resources that it uses are available to the new start")
        address: str = arg("this host's own address on the fabric")
        interfaces: list[str] = arg("its interfaces, the one of the address first")
        adapters: list[str] = arg("their RDMA adapters", default_factory=list)
        peers: list[str] = arg("the addresses of the other members", default_factory=list)
        port: int = arg("the master port on this host; 0: another member has it", default=0)
        host: str = arg("the host's name, for messages", default="")

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
MOST_PEERS = 16


class Fabric(Module["Fabric.Args"]):
    """Report the fast links of this host to others, and whether it reaches them. Changes nothing, and needs no root.

    Reads the RDMA adapters with their interfaces, rates, MTU, addresses, RoCE v2 GIDs and firmware. Each peer is looked up
    in the routes and pinged twice with a frame of the interface's full MTU.

    Returns: links (one row per adapter), findings (as in `doctor`), paths (one row per peer), kernel, driver (NVIDIA's;
    empty if there is none), now_s (the host's clock at the end, seconds since the epoch).
    """

    @dataclass(frozen=True)
    class Args:
        peers: list[str] = arg("IPv4 addresses of other hosts that should be reached over these links", default=())

    def run(self, args: Args, context: Context) -> Result:
        if len(args.peers) > MOST_PEERS:
            raise Failed(f"at most {MOST_PEERS} peers.")
        host = Host(context, getpass.getuser())
        links = fabric.links(host)
        paths = [fabric.to(host, _address(peer)) for peer in args.peers]
        data = {
            "links": [link.to_json() for link in links],
            "findings": [finding.to_json() for finding in check.check_fabric(host)],
            "paths": [asdict(path) for path in paths],
            "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100],
            "driver": version_in((host.gpu() or ("", ""))[1])[:100],
            "now_s": time.time(),
        }
        active = [link.adapter for link in links if link.active]
        return Result(msg=f"up: {', '.join(active)}" if active else "no link is up", data=data)


def _address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise Failed(f"{text!r} is not an IPv4 address.") from None


PROGRAM = "ib_write_bw"
MOST_ENDS = 4
#: the sender comes before the listener is there, and tries again; a listener waits that long for its sender
COME_S = 15.0
TRY_AGAIN_S = 0.3
#: time that perftest leaves out at the beginning and at the end
MARGIN_S = 1
#: a row of perftest's table: bytes, iterations, peak, average, messages (6.06; the average of a timed run is the third figure)
ROW = re.compile(r"\d{1,12} \d{1,12} [\d.]{1,12} (\d{1,6}(?:\.\d{1,6})?) [\d.]{1,16}")
REFUSED = "Couldn't connect"


@dataclass(frozen=True, slots=True)
class Rate:
    """The measured rate of one half of a port."""

    adapter: str
    #: Gb/s; None if nothing was measured
    gbps: float | None = None
    #: why nothing was measured
    error: str = ""


class LinkRate(Module["LinkRate.Args"]):
    """Measure how fast this host writes to another's memory over both halves of a port at the same time.

    It uses perftest's `ib_write_bw`: one host listens, the other sends. It needs no root, pins some MiB, and uses the whole
    link while it runs.

    Returns: rates (adapter, gbps, error) of each half; those of a listener are its sender's.
    """

    @dataclass(frozen=True)
    class Args:
        role: Literal["listen", "send"] = arg("whether this host waits for the other, or writes to it")
        ends: list[dict[str, Any]] = arg("for each half: adapter, address (its own), peer (the other's), port")
        seconds: int = arg("how long to measure, seconds", default=4)

    def run(self, args: Args, context: Context) -> Result:
        if not 0 < len(args.ends) <= MOST_ENDS or not 3 <= args.seconds <= 30:
            raise Failed(f"1 to {MOST_ENDS} halves of a port, 3 to 30 seconds.")
        host = Host(context, getpass.getuser())
        commands = [_command(host, end, args) for end in args.ends]
        with ThreadPoolExecutor(len(commands)) as pool:
            rates = list(pool.map(lambda command: _measured(host, command[0], command[1], args), commands))
        return Result(
            msg=f"{sum(rate.gbps or 0.0 for rate in rates):.0f} Gb/s", data={"rates": [asdict(rate) for rate in rates]}
        )


def _command(host: Host, end: dict[str, Any], args: LinkRate.Args) -> tuple[str, list[str]]:
    """Return the adapter, and the arguments of the program that measures it."""
    adapter, own, peer = str(end["adapter"]), str(IPv4Address(end["address"])), str(IPv4Address(end["peer"]))
    if not fabric.NAME.fullmatch(adapter):
        raise Failed(f"{adapter!r} is not the name of an adapter.")
    index = fabric.gid_index(host, adapter, own)
    gid = ["-x", str(index)] if index is not None else []
    words = ["-d", adapter, *gid, "-p", str(int(end["port"])), "-D", str(args.seconds), "-f", str(MARGIN_S), "-F"]
    return adapter, [PROGRAM, *words, "--report_gbits", *([peer] if args.role == "send" else [])]


def _measured(host: Host, adapter: str, words: list[str], args: LinkRate.Args) -> Rate:
    deadline_s = time.monotonic() + COME_S
    while True:
        done = host.output(*words, timeout_s=args.seconds + 2 * COME_S)
        early = args.role == "send" and done is not None and not done.ok and REFUSED in done.out + done.err
        if not early or time.monotonic() > deadline_s:
            return _rate(adapter, done) if done is not None else Rate(adapter, error=_why_none(host))
        time.sleep(TRY_AGAIN_S)


def _why_none(host: Host) -> str:
    """Return why the program printed no result."""
    return f"{PROGRAM} {'is not installed' if host.output(PROGRAM, '--version') is None else 'did not end'}"


def _rate(adapter: str, done: Completed) -> Rate:
    rows = (" ".join(line[:200].split()) for line in done.out.splitlines()[-100:])
    found = [match[1] for match in map(ROW.fullmatch, rows) if match]
    if found:
        return Rate(adapter, float(found[-1]))
    printed = [line.strip() for line in (done.out + "\n" + done.err).splitlines() if line.strip(" -")]
    return Rate(adapter, error=one_line(printed[-1] if printed else f"{PROGRAM} printed no rate", at_most=200))
