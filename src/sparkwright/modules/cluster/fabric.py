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
from sparkwright.doctor.host import Host, find_version
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import containers, replacement
from sparkwright.host.machine import CompletedCommand
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
        links = list(_link_findings(args, host))
        problems = [
            *_check_interfaces(args, host),
            *_check_adapters(args, host),
            *_check_port(args, context),
            *_check_leftover_ranks(args, context),
        ]
        problems += [
            (f"{shown}.", fix and f"On the host: `{fix}`.") for verdict, shown, fix in links if verdict == "bad"
        ]
        paths = (
            [] if problems else [fabric.probe_path(host, IPv4Address(peer)) for peer in filter(_is_ipv4, args.peers)]
        )
        problems += [problem for way in paths for problem in _check_path(args, way)]
        if problems:
            evidence, fix = problems[0]
            data = {"evidence": [f"{problem} {how}".rstrip() for problem, how in problems[1:]]}
            return Result(failed=True, exit=Exit.REFUSED, msg=evidence, fix=fix, data=data)
        for verdict, shown, _ in links:
            if verdict == "warning":
                context.note(f"{shown}.")
        return _ready_result(args, host, paths)


def _ready_result(args: FabricReady.Args, host: Host, paths: Sequence[fabric.NetworkPath]) -> Result:
    """Return the result of a fabric without problems, with the data that the members compare."""
    reached_peers = [way.peer for way in paths if way.reached]
    untried_peers = [peer for peer in args.peers if peer not in reached_peers]
    suffix = f"; reaches {', '.join(reached_peers)}" if reached_peers else ""
    suffix += f"; could not try the way to {', '.join(untried_peers)}" if untried_peers else ""
    used = [link for link in fabric.list_links(host) if link.interface in args.interfaces]
    data = {
        "firmware": _join_distinct(link.firmware for link in used),
        "mtu": _join_distinct(link.mtu for link in used),
    }
    return Result(msg=f"{args.interfaces[0]} is there for {args.address}{suffix}", data=data)


def _join_distinct(values: Iterable[object]) -> str:
    return "/".join(sorted({str(item) for item in values if item}))


def _is_ipv4(address: str) -> bool:
    return ":" not in address


def _check_interfaces(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    present = host.list_folder(fabric.INTERFACES)
    fix = f"Correct `fabric.interfaces` in hosts/{args.host}.yml; `invoke cluster.inspect` shows the links."
    missing = [name for name in args.interfaces if name not in present]
    if missing:
        names = ", ".join(one_line(name, max_chars=20) for name in present if name != LOOPBACK)
        yield f"no interface {missing[0]} on {args.host}; there are: {names or 'none'}.", fix
        return
    down = [
        interface
        for interface in args.interfaces
        if (host.read(f"{fabric.INTERFACES}/{interface}/operstate") or "").strip() == "down"
    ]
    for name in down:
        if name == args.interfaces[0] or not fabric.has_active_twin(name, fabric.list_links(host)):
            yield f"the interface {name} is down.", f"On the host: `sudo ip link set {name} up`."
    rows = fabric.addresses_by_interface(host) if _is_ipv4(args.address) else {}
    addresses = [item.partition("/")[0] for item in rows.get(args.interfaces[0], ())]
    if rows and args.address not in addresses and args.interfaces[0] != LOOPBACK:
        names = ", ".join(addresses) or "no IPv4 address"
        yield (
            f"{args.interfaces[0]} has {names}, not {args.address}.",
            f"Correct `fabric.address` in hosts/{args.host}.yml.",
        )


def _check_adapters(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    present = host.list_folder(fabric.ADAPTERS)
    for name in args.adapters:
        if name not in present:
            names = ", ".join(one_line(item, max_chars=20) for item in present) or "none"
            yield (
                f"no RDMA adapter {name} on {args.host}; there are: {names}.",
                f"Set `fabric.adapters` in hosts/{args.host}.yml.",
            )
    first = args.adapters[0] if args.adapters else ""
    if first in present and _is_ipv4(args.address) and fabric.gid_index(host, first, args.address) is None:
        yield f"{first} has no RoCE v2 GID for {args.address}.", "`invoke cluster.check` shows the links."


def _link_findings(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield the findings of `doctor` about the ports in use and the memory for RDMA: verdict, evidence, fix."""
    if not args.adapters:
        return
    for links in fabric.group_by_port(fabric.list_links(host)).values():
        if any(link.interface in args.interfaces for link in links):
            rows = (row[:3] for row in check.port_problems(links))
            yield from (row for row in rows if f" GID for {args.address}:" not in row[1])  # _adapters says that
    yield from ((finding.verdict, finding.evidence, "") for finding in check.check_rdma_memory(host))


def _check_port(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    own = replacement.find_current(context, args.name) if args.port else {}
    if not args.port or (own and own["State"]["Running"] and str(args.port) in own["Config"]["Cmd"]):
        return  # the rank that holds it is stopped before another starts
    if holder := containers.describe_port_holder(context.docker(), args.port):
        fix = "Stop that, or use another port with `port:` of the cluster in hosts/groups.yml."
        yield f"port {args.port}, on which the ranks meet, is in use by {holder}.", fix


def _check_leftover_ranks(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    replaced_id = replacement.find_current(context, args.name).get("Id")
    for container in context.docker().containers.list(filters={"label": RANK_LABEL}, ignore_removed=True):
        if container.id != replaced_id:
            name, cluster = one_line(str(container.name)), one_line(str(container.labels.get(CLUSTER_LABEL, "")))
            yield f"{name} still runs here, a rank of the cluster {cluster}.", containers.fix_to_stop_rank(name)


def _check_path(args: FabricReady.Args, path: fabric.NetworkPath) -> Iterator[tuple[str, str]]:
    """Yield the problems of the path to another member, each with its fix."""
    if path.interface and path.interface not in args.interfaces:
        yield (
            f"{path.peer} is reached over {path.interface}, not over the fabric.",
            f"On the host: `ip route get {path.peer}`.",
        )
    elif path.reached is False:
        fix = "Set the same MTU on both hosts and on the switch; `invoke cluster.check` tries each way."
        yield f"a frame of {path.mtu} bytes does not reach {path.peer} over {path.interface}.", fix


#: limit on the peers of one request
MAX_PEERS = 16


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
        if len(args.peers) > MAX_PEERS:
            raise Failed(f"at most {MAX_PEERS} peers.")
        host = Host(context, getpass.getuser())
        links = fabric.list_links(host)
        paths = [fabric.probe_path(host, _parse_address(peer)) for peer in args.peers]
        data = {
            "links": [link.to_json() for link in links],
            "findings": [finding.to_json() for finding in check.check_fabric(host)],
            "paths": [asdict(path) for path in paths],
            "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100],
            "driver": find_version((host.gpu() or ("", ""))[1])[:100],
            "now_s": time.time(),
        }
        active = [link.adapter for link in links if link.active]
        return Result(msg=f"up: {', '.join(active)}" if active else "no link is up", data=data)


def _parse_address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise Failed(f"{text!r} is not an IPv4 address.") from None


PROGRAM = "ib_write_bw"
MAX_ENDS = 4
#: the sender comes before the listener is there, and tries again; a listener waits that long for its sender
CONNECT_TIMEOUT_S = 15.0
RETRY_S = 0.3
#: time that perftest leaves out at the beginning and at the end
MARGIN_S = 1
#: a row of perftest's table: bytes, iterations, peak, average, messages (6.06; the average of a timed run is the third figure)
RATE_ROW = re.compile(r"\d{1,12} \d{1,12} [\d.]{1,12} (\d{1,6}(?:\.\d{1,6})?) [\d.]{1,16}")
CONNECT_FAILED_TEXT = "Couldn't connect"


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
        if not 0 < len(args.ends) <= MAX_ENDS or not 3 <= args.seconds <= 30:
            raise Failed(f"1 to {MAX_ENDS} halves of a port, 3 to 30 seconds.")
        host = Host(context, getpass.getuser())
        commands = [_build_command(host, end, args) for end in args.ends]
        with ThreadPoolExecutor(len(commands)) as pool:
            rates = list(pool.map(lambda command: _measure_rate(host, command[0], command[1], args), commands))
        return Result(
            msg=f"{sum(rate.gbps or 0.0 for rate in rates):.0f} Gb/s", data={"rates": [asdict(rate) for rate in rates]}
        )


def _build_command(host: Host, end: dict[str, Any], args: LinkRate.Args) -> tuple[str, list[str]]:
    """Return the adapter, and the arguments of the program that measures it."""
    adapter, own, peer = str(end["adapter"]), str(IPv4Address(end["address"])), str(IPv4Address(end["peer"]))
    if not fabric.NAME.fullmatch(adapter):
        raise Failed(f"{adapter!r} is not the name of an adapter.")
    index = fabric.gid_index(host, adapter, own)
    gid = ["-x", str(index)] if index is not None else []
    options = ["-d", adapter, *gid, "-p", str(int(end["port"])), "-D", str(args.seconds), "-f", str(MARGIN_S), "-F"]
    return adapter, [PROGRAM, *options, "--report_gbits", *([peer] if args.role == "send" else [])]


def _measure_rate(host: Host, adapter: str, command: list[str], args: LinkRate.Args) -> Rate:
    deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        completed = host.run_program(*command, timeout_s=args.seconds + 2 * CONNECT_TIMEOUT_S)
        refused_early = (
            args.role == "send"
            and completed is not None
            and not completed.ok
            and CONNECT_FAILED_TEXT in completed.out + completed.err
        )
        if not refused_early or time.monotonic() > deadline_s:
            return (
                _parse_rate(adapter, completed)
                if completed is not None
                else Rate(adapter, error=_explain_no_result(host))
            )
        time.sleep(RETRY_S)


def _explain_no_result(host: Host) -> str:
    """Return why the program printed no result."""
    return f"{PROGRAM} {'is not installed' if host.run_program(PROGRAM, '--version') is None else 'did not end'}"


def _parse_rate(adapter: str, completed: CompletedCommand) -> Rate:
    rows = (" ".join(line[:200].split()) for line in completed.out.splitlines()[-100:])
    rates = [match[1] for match in map(RATE_ROW.fullmatch, rows) if match]
    if rates:
        return Rate(adapter, float(rates[-1]))
    lines = [line.strip() for line in (completed.out + "\n" + completed.err).splitlines() if line.strip(" -")]
    return Rate(adapter, error=one_line(lines[-1] if lines else f"{PROGRAM} printed no rate", max_chars=200))
