from __future__ import annotations

import getpass
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from typing import Any, Literal

from sparkwright.doctor import fabric
from sparkwright.doctor.host import Host
from sparkwright.errors import Failed
from sparkwright.host.machine import Completed
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

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
