"""Requests about a host: its checks and their fixes, its links, and what it has."""

from __future__ import annotations

import getpass
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.doctor import fabric
from sparkwright.doctor.checks import examine, memory, sentence
from sparkwright.doctor.checks import network as check
from sparkwright.doctor.host import FIXES, Host, Wanted, version_in
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import running_server
from sparkwright.host.gateway import haproxy_sockets, server_operations
from sparkwright.host.machine import Completed
from sparkwright.host.models import model_folders
from sparkwright.host.module import Context, Module
from sparkwright.host.records import good_states
from sparkwright.modules.system.facts import Facts
from sparkwright.protocol.result import Result, arg
from sparkwright.shell import join
from sparkwright.units import GIB
from sparkwright.visible import count, one_line


class Doctor(Module["Doctor.Args"]):
    """Check one by one that the host is ready to serve. Changes nothing, and needs no root.

    Looks at: DGX OS and its update, memory, driver and firmware, kernel, Docker for this very login and at boot, container
    toolkit and CDI specification, what a logout takes away, locale, names, the recipe's memory budget, earlyoom against the
    recipe, swap, disk, clock, the server's port, other starts of it, Ollama, the image's platform. What can't be seen is
    `unknown`, never `ok`.

    Returns: findings (check, verdict ok/warning/bad/unknown, evidence, fix: one command, source, repair), user, now_s (the host's
    clock, seconds since the epoch), budget (of the recipe's server here; null without one). It never fails: the findings are the
    answer.
    """

    @dataclass(frozen=True)
    class Args:
        host: str = arg("the host's name, for the fix commands", default="")
        recipe: str = arg("what it is to serve; empty: nothing", default="")
        container: str = arg("the server's container", default="")
        port: int = arg("the server's port; 0: none", default=0)
        image: str = arg("the recipe's image", default="")
        platforms: list[str] | None = arg("of the image, as the lock knows them; null: it does not", default=None)
        utilization: float | None = arg("the share of memory that the engine takes", default=None)
        reserve_gib: float = arg(
            "memory that must stay free in addition to the engine's, GiB", default=defaults.RESERVE_GIB
        )
        ipc: str = arg("the container's --ipc", default="")
        model_dir: str = arg("where the model lies", default="")
        engine_memory: dict[str, Any] = arg("what the server takes of the memory", default_factory=dict)
        ollama: str = arg("what a deploy does with Ollama: unload, stop, leave", default="")

    def run(self, args: Args, context: Context) -> Result:
        same = ("recipe", "container", "port", "image", "utilization", "ipc", "model_dir", "ollama", "engine_memory")
        given = {name: getattr(args, name) for name in same}
        platforms = None if args.platforms is None else tuple(args.platforms)
        reserve_bytes = int(args.reserve_gib * GIB)
        wanted = Wanted(name=args.host, platforms=platforms, reserve_bytes=reserve_bytes, **given)
        user = getpass.getuser()
        host = Host(context, user, wanted)
        found = examine(host)
        rows = [finding.to_json() for finding in found]
        budget = memory.of_host(host)
        data = {"findings": rows, "user": user, "now_s": time.time(), "budget": budget.to_json() if budget else None}
        return Result(msg=sentence(found), data=data)


COMMAND_S = 120.0


class Fix(Module["Fix.Args"]):
    """Does one of the few things that `doctor` may set right by itself, by its name. Needs root (`become`).

    It never installs or upgrades a package, and restarts no engine; each can be done twice.

    Returns: command (what was run). Fails with the command's own words, and refuses a name it does not know.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("its name in a finding of `doctor`")
        user: str = arg("the ssh user on this host")

    def run(self, args: Args, context: Context) -> Result:
        fix = FIXES.get(args.name)
        if fix is None:
            raise Refused(f"unknown fix {args.name!r}.", fix=f"Known fixes: {', '.join(FIXES)}.")
        if context.machine.sandbox:
            raise Refused("fixes are not applied to a sandbox: its programs belong to this machine.")
        argv = fix.command(args.user)
        data = {"command": join(argv)}
        if context.check:
            return Result(changed=True, msg=fix.says, data=data)
        answer = context.machine.run(argv, timeout_s=COMMAND_S)
        if not answer.ok:
            last = (answer.err.strip() or answer.out.strip() or f"exit {answer.code}").splitlines()[-1]
            manual = f"On the host: `{fix.manual_command(args.user)}`."
            raise Failed(f"{args.name}: `{join(argv)}` failed: {last[-300:]}", fix=manual)
        return Result(changed=True, msg=fix.says, data=data)


MOST_PEERS = 16


class Fabric(Module["Fabric.Args"]):
    """The fast links of this host to others, and whether it reaches them there. Changes nothing, and needs no root.

    Reads the RDMA adapters with their interfaces, rates, MTU, addresses, RoCE v2 GIDs and firmware. Each peer is looked up in
    the routes and pinged twice with a frame of the interface's whole MTU.

    Returns: links (a row an adapter), findings (as `doctor` has them), paths (a row a peer), kernel, driver (NVIDIA's; empty
    where there is none), now_s (the host's clock at the end, seconds since the epoch).
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


FACTS = (
    *("user", "hostname", "architecture", "os", "memory_bytes", "memory_available_bytes", "disk_free_bytes", "gpu"),
    *("docker", "ollama", "sandbox"),
)


class Survey(Module["Survey.Args"]):
    """Report what is on a host before sparkwright serves there: hardware, Docker, Ollama, servers and models that others brought.

    Changes nothing, and needs no root. A container counts as a server when it lists its models as OpenAI's API does; a folder as
    a model by its name or place alone, for its bytes are proved in a deploy.

    Returns: user, hostname, architecture, os, memory_bytes, memory_available_bytes, disk_free_bytes, gpu, docker, ollama, sandbox
    (as `facts` has them), servers (name, image, engine, port, models, model_dir, verified: it is the last verified server here),
    models (id, dir, place: "own" for the given dir, "folder" or "hub cache", size_bytes).
    """

    @dataclass(frozen=True)
    class Args:
        ids: list[str] = arg("models to look for, as the hub names them", default_factory=list)
        dirs: list[str] = arg("the folder of each, as its recipe has it; ~ is the user's home", default_factory=list)

    def run(self, args: Args, context: Context) -> Result:
        if len(args.ids) != len(args.dirs):
            raise Failed("ids and dirs must have the same length.")
        facts = Facts().run(Facts.Args(), context).data
        servers = _servers(context) if facts["docker"]["reachable"] else []
        models = [asdict(on_disk) for on_disk in model_folders.find_on_disk(context.machine, args.ids, args.dirs)]
        data = {**{name: facts[name] for name in FACTS}, "servers": servers, "models": models}
        return Result(msg=f"{count(len(servers), 'server')}, {count(len(models), 'model')} on disk", data=data)


def _servers(context: Context) -> list[dict[str, Any]]:
    verified = good_states.last(context.state).get("container_id")
    rows = [(server, asdict(server)) for server in running_server.find(context)]
    return [
        {**{key: row[key] for key in row if key != "id"}, "verified": server.id == verified} for server, row in rows
    ]


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
    """Measure how fast this host writes to another's memory over the halves of a port, all at the same time, for some seconds.

    With perftest's `ib_write_bw`: one host listens, the other sends. It needs no root, pins some MiB, and takes the whole link
    meanwhile.

    Returns: rates (adapter, gbps, error) of each half; a listener's are as its sender's.
    """

    @dataclass(frozen=True)
    class Args:
        role: Literal["listen", "send"] = arg("whether this host waits for the other, or writes to it")
        ends: list[dict[str, Any]] = arg("adapter, address (its own), peer (the other's), port; of each half")
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


class GatewayOwnKey(Module["GatewayOwnKey.Args"]):
    """The SHA-256 of the key with which this host drains its own servers at gateways. The key is made where there is none.

    The key itself never leaves the host but to its gateways; it is random and long enough that its hash tells nothing of it.

    Returns: sha256 (empty in check mode where there is no key yet).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        key = server_operations.kept(context.state) if context.check else server_operations.made(context.state)
        return Result(data={"sha256": server_operations.hashed(key)})


NONE = {"running": False, "verified": False, "changed": [], "models": [], "clients": []}


class GatewayState(Module["GatewayState.Args"]):
    """Report the current state of this host's gateway: requests, queue and errors of each model, and the state of each server.

    Returns: running, models (see gateway/statistics.py), verified (whether HAProxy reads the files that were verified last),
    changed (files that are not as they were verified), clients (what those with keys of their own used today, see
    gateway/usage.py).
    """

    @dataclass(frozen=True)
    class Args:
        """None."""

    def run(self, args: Args, context: Context) -> Result:
        found = haproxy_sockets.inspect(context.state) or NONE
        return Result(msg="" if found["running"] else "no gateway is running", data=found)
