"""Modules that check, report and measure the fast links between a cluster's hosts."""

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
from sparkwright.doctor.checks import network as network_checks
from sparkwright.doctor.host import Host, find_version
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import containers, replacement
from sparkwright.host.machine import CompletedCommand
from sparkwright.host.module import Context, Module
from sparkwright.protocol.container import CLUSTER_LABEL, RANK_LABEL
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

#: interface that tests use as the fabric
LOOPBACK = "lo"

MAX_PEERS = 16

PERFTEST_PROGRAM = "ib_write_bw"
MAX_ENDS = 4
#: how long a sender retries to connect to its listener, and a listener waits for its sender
CONNECT_TIMEOUT_S = 15.0
RETRY_PAUSE_S = 0.3
#: perftest excludes this time at the beginning and at the end from the measurement
EXCLUDED_MARGIN_S = 1
#: a row of perftest's table: bytes, iterations, peak, average, messages (6.06; the peak of a timed run is 0.00)
RATE_ROW_PATTERN = re.compile(r"\d{1,12} \d{1,12} [\d.]{1,12} (\d{1,6}(?:\.\d{1,6})?) [\d.]{1,16}")
CONNECT_FAILED_TEXT = "Couldn't connect"


class FabricReady(Module["FabricReady.Args"]):
    """Check that the host's fabric is ready for the ranks of a cluster. Changes nothing.

    Runs while the previous servers are still serving. Checks the interfaces and the address in the host's file, the RoCE v2
    GID of each adapter, the kernel's memory for RDMA, the path to each other member with a frame of the full MTU, the master
    port, and ranks of other clusters that are still running on this host. If there are problems, the run is refused, and all
    of them are listed. Conditions that only reduce the speed are reported in notes: a link of 100 Gb/s, one half of the port
    down, MTU 1500. With an IPv6 address, GIDs and paths are not checked.

    Returns: firmware (of the named interfaces' adapters), mtu (of the interfaces); each is empty if unknown.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name; the port and rank that it uses count as free")
        address: str = arg("this host's address on the fabric")
        interfaces: list[str] = arg("this host's interfaces on the fabric; the first has the address")
        adapters: list[str] = arg("the RDMA adapters of these interfaces", default_factory=list)
        peers: list[str] = arg("the addresses of the other members", default_factory=list)
        port: int = arg("the master port if this host is the head; otherwise 0", default=0)
        host: str = arg("the host's name, for messages", default="")

    def run(self, args: Args, context: Context) -> Result:
        host = Host(context, getpass.getuser())
        link_findings = list(_link_findings(args, host))
        problems = [
            *_check_interfaces(args, host),
            *_check_adapters(args, host),
            *_check_port(args, context),
            *_check_leftover_ranks(args, context),
        ]
        problems += [
            (f"{evidence}.", fix and f"On the host: `{fix}`.")
            for verdict, evidence, fix in link_findings
            if verdict == "bad"
        ]
        peers = [] if problems else [IPv4Address(peer) for peer in args.peers if _is_ipv4(peer)]
        paths = [fabric.probe_path(host, peer) for peer in peers]
        problems += [problem for path in paths for problem in _check_path(args, path)]
        if problems:
            message, fix = problems[0]
            data = {"evidence": [f"{other} {other_fix}".rstrip() for other, other_fix in problems[1:]]}
            return Result(failed=True, exit=Exit.REFUSED, msg=message, fix=fix, data=data)
        for verdict, evidence, _ in link_findings:
            if verdict == "warning":
                context.note(f"{evidence}.")
        return _ready_result(args, host, paths)


def _ready_result(args: FabricReady.Args, host: Host, paths: Sequence[fabric.NetworkPath]) -> Result:
    """Return the result of a check without problems, with the values that the members of a cluster compare."""
    reached_peers = [path.peer for path in paths if path.reached]
    unchecked_peers = [peer for peer in args.peers if peer not in reached_peers]
    suffix = f"; reaches {', '.join(reached_peers)}" if reached_peers else ""
    suffix += f"; could not check the path to {', '.join(unchecked_peers)}" if unchecked_peers else ""
    links = [link for link in fabric.list_links(host) if link.interface in args.interfaces]
    data = {
        "firmware": _join_distinct(link.firmware for link in links),
        "mtu": _join_distinct(link.mtu for link in links),
    }
    return Result(msg=f"{args.interfaces[0]} is ready for {args.address}{suffix}", data=data)


def _join_distinct(values: Iterable[object]) -> str:
    return "/".join(sorted({str(value) for value in values if value}))


def _is_ipv4(address: str) -> bool:
    return ":" not in address


def _check_interfaces(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    interfaces = host.list_folder(fabric.INTERFACES_FOLDER)
    fix = f"Correct `fabric.interfaces` in hosts/{args.host}.yml; `invoke cluster.inspect` shows the links."
    missing_interfaces = [name for name in args.interfaces if name not in interfaces]
    if missing_interfaces:
        names = ", ".join(one_line(name, max_chars=20) for name in interfaces if name != LOOPBACK)
        yield f"{args.host} has no interface {missing_interfaces[0]}; its interfaces: {names or 'none'}.", fix
        return
    first_interface = args.interfaces[0]
    for name in args.interfaces:
        is_down = (host.read(f"{fabric.INTERFACES_FOLDER}/{name}/operstate") or "").strip() == "down"
        if is_down and (name == first_interface or not fabric.has_active_twin(name, fabric.list_links(host))):
            yield f"the interface {name} is down.", f"On the host: `sudo ip link set {name} up`."
    networks = fabric.addresses_by_interface(host) if _is_ipv4(args.address) else {}
    addresses = [network.partition("/")[0] for network in networks.get(first_interface, ())]
    if networks and args.address not in addresses and first_interface != LOOPBACK:
        fix = f"Correct `fabric.address` in hosts/{args.host}.yml."
        yield f"{first_interface} has {', '.join(addresses) or 'no IPv4 address'}, not {args.address}.", fix


def _check_adapters(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str]]:
    adapters = host.list_folder(fabric.ADAPTERS_FOLDER)
    for name in args.adapters:
        if name not in adapters:
            names = ", ".join(one_line(adapter, max_chars=20) for adapter in adapters) or "none"
            fix = f"Set `fabric.adapters` in hosts/{args.host}.yml."
            yield f"{args.host} has no RDMA adapter {name}; its adapters: {names}.", fix
    first_adapter = args.adapters[0] if args.adapters else ""
    if (
        first_adapter in adapters
        and _is_ipv4(args.address)
        and fabric.gid_index(host, first_adapter, args.address) is None
    ):
        yield f"{first_adapter} has no RoCE v2 GID for {args.address}.", "`invoke cluster.check` shows the links."


def _link_findings(args: FabricReady.Args, host: Host) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict, evidence and fix of each `doctor` finding about these ports and the memory for RDMA."""
    if not args.adapters:
        return
    for links in fabric.group_by_port(fabric.list_links(host)).values():
        if any(link.interface in args.interfaces for link in links):
            problems = (problem[:3] for problem in network_checks.port_problems(links))
            # _check_adapters reports a missing GID
            yield from (problem for problem in problems if f" GID for {args.address}:" not in problem[1])
    yield from ((finding.verdict, finding.evidence, "") for finding in network_checks.check_rdma_memory(host))


def _check_port(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    current = replacement.find_current(context, args.name) if args.port else {}
    if not args.port or (current and current["State"]["Running"] and str(args.port) in current["Config"]["Cmd"]):
        return  # the current rank is stopped before the new one starts
    if holder := containers.describe_port_holder(context.docker(), args.port):
        fix = "Stop that program, or set another `port:` for the cluster in hosts/groups.yml."
        yield f"the cluster's master port {args.port} is in use by {holder}.", fix


def _check_leftover_ranks(args: FabricReady.Args, context: Context) -> Iterator[tuple[str, str]]:
    replaced_id = replacement.find_current(context, args.name).get("Id")
    for container in context.docker().containers.list(filters={"label": RANK_LABEL}, ignore_removed=True):
        if container.id != replaced_id:
            name, cluster = one_line(str(container.name)), one_line(str(container.labels.get(CLUSTER_LABEL, "")))
            message = f"{name}, a rank of the cluster {cluster}, is still running on this host."
            yield message, containers.fix_to_stop_rank(name)


def _check_path(args: FabricReady.Args, path: fabric.NetworkPath) -> Iterator[tuple[str, str]]:
    if path.interface and path.interface not in args.interfaces:
        yield (
            f"{path.peer} is reached over {path.interface}, not over the fabric.",
            f"On the host: `ip route get {path.peer}`.",
        )
    elif path.reached is False:
        fix = "Set the same MTU on both hosts and on the switch; `invoke cluster.check` checks each path."
        yield f"a frame of {path.mtu} bytes does not reach {path.peer} over {path.interface}.", fix


class Fabric(Module["Fabric.Args"]):
    """Report this host's fast links, and whether peers are reachable over them. Makes no changes and does not need root.

    Reads the RDMA adapters with their interfaces, rates, MTU, addresses, RoCE v2 GIDs and firmware. For each peer, the route
    is read, and two pings are sent with a frame of the interface's full MTU.

    Returns: links (one per adapter), findings (as in `doctor`), paths (one per peer), kernel, driver (version of NVIDIA's
    driver; empty if there is none), now_s (the host's clock at the end, seconds since the epoch).
    """

    @dataclass(frozen=True)
    class Args:
        peers: list[str] = arg("IPv4 addresses of hosts that should be reachable over these links", default=())

    def run(self, args: Args, context: Context) -> Result:
        if len(args.peers) > MAX_PEERS:
            raise Failed(f"at most {MAX_PEERS} peers are allowed.")
        host = Host(context, getpass.getuser())
        links = fabric.list_links(host)
        paths = [fabric.probe_path(host, _parse_address(peer)) for peer in args.peers]
        data = {
            "links": [link.to_json() for link in links],
            "findings": [finding.to_json() for finding in network_checks.check_fabric(host)],
            "paths": [asdict(path) for path in paths],
            "kernel": (host.read("/proc/sys/kernel/osrelease") or "").strip()[:100],
            "driver": find_version((host.gpu() or ("", ""))[1])[:100],
            "now_s": time.time(),
        }
        active_adapters = [link.adapter for link in links if link.active]
        return Result(msg=f"up: {', '.join(active_adapters)}" if active_adapters else "no link is up", data=data)


def _parse_address(text: str) -> IPv4Address:
    try:
        return IPv4Address(text)
    except ValueError:
        raise Failed(f"{text!r} is not an IPv4 address.") from None


@dataclass(frozen=True, slots=True)
class Rate:
    """The measured rate of one half of a port."""

    adapter: str
    #: Gb/s; None if nothing was measured
    gbps: float | None = None
    #: why nothing was measured
    error: str = ""


class LinkRate(Module["LinkRate.Args"]):
    """Measure the rate of RDMA writes to another host, over both halves of a port at the same time.

    Runs perftest's `ib_write_bw`: one host listens, the other sends. It does not need root, pins a few MiB of memory, and
    saturates the link while it runs.

    Returns: rates (adapter, gbps, error) of each half; a listener returns the rates of its sender.
    """

    @dataclass(frozen=True)
    class Args:
        role: Literal["listen", "send"] = arg("`listen` to wait for the other host, `send` to write to it")
        ends: list[dict[str, Any]] = arg("for each half: adapter, address, peer (the other host's address), port")
        seconds: int = arg("how long to measure, seconds, 3 to 30", default=4)

    def run(self, args: Args, context: Context) -> Result:
        if not 0 < len(args.ends) <= MAX_ENDS or not 3 <= args.seconds <= 30:
            raise Failed(f"`ends` must have 1 to {MAX_ENDS} elements, and `seconds` must be 3 to 30.")
        host = Host(context, getpass.getuser())
        commands = [_build_command(host, half, args) for half in args.ends]
        with ThreadPoolExecutor(len(commands)) as pool:
            rates = list(pool.map(lambda command: _measure_rate(host, command[0], command[1], args), commands))
        total_gbps = sum(rate.gbps or 0.0 for rate in rates)
        return Result(msg=f"{total_gbps:.0f} Gb/s", data={"rates": [asdict(rate) for rate in rates]})


def _build_command(host: Host, half: dict[str, Any], args: LinkRate.Args) -> tuple[str, list[str]]:
    """Return the adapter's name and the command that measures its rate."""
    adapter, address, peer = str(half["adapter"]), str(IPv4Address(half["address"])), str(IPv4Address(half["peer"]))
    if not fabric.NAME_PATTERN.fullmatch(adapter):
        raise Failed(f"{adapter!r} is not the name of an adapter.")
    gid_index = fabric.gid_index(host, adapter, address)
    gid_options = ["-x", str(gid_index)] if gid_index is not None else []
    options = [
        "-d",
        adapter,
        *gid_options,
        "-p",
        str(int(half["port"])),
        "-D",
        str(args.seconds),
        "-f",
        str(EXCLUDED_MARGIN_S),
        "-F",
    ]
    return adapter, [PERFTEST_PROGRAM, *options, "--report_gbits", *([peer] if args.role == "send" else [])]


def _measure_rate(host: Host, adapter: str, command: list[str], args: LinkRate.Args) -> Rate:
    deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        completed = host.run_program(*command, timeout_s=args.seconds + 2 * CONNECT_TIMEOUT_S)
        is_listener_missing = (
            args.role == "send"
            and completed is not None
            and not completed.ok
            and CONNECT_FAILED_TEXT in completed.out + completed.err
        )
        if not is_listener_missing or time.monotonic() > deadline_s:
            break
        time.sleep(RETRY_PAUSE_S)
    if completed is not None:
        return _parse_rate(adapter, completed)
    is_installed = host.run_program(PERFTEST_PROGRAM, "--version") is not None
    return Rate(adapter, error=f"{PERFTEST_PROGRAM} {'timed out' if is_installed else 'is not installed'}")


def _parse_rate(adapter: str, completed: CompletedCommand) -> Rate:
    rows = (" ".join(line[:200].split()) for line in completed.out.splitlines()[-100:])
    rates = [match[1] for match in map(RATE_ROW_PATTERN.fullmatch, rows) if match]
    if rates:
        return Rate(adapter, float(rates[-1]))
    lines = [line.strip() for line in (completed.out + "\n" + completed.err).splitlines() if line.strip(" -")]
    return Rate(adapter, error=one_line(lines[-1] if lines else f"{PERFTEST_PROGRAM} printed no rate", max_chars=200))
