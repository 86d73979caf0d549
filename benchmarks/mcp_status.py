"""The tool `status` of `sparkwright mcp` for eight hosts, in seconds per call.

    make bench-mcp_status           (needs openssh-server and the extra `mcp`)

The hosts are those of status.py: sshds on loopback, behind a proxy that adds the round trip. The client is the official SDK's,
over stdio. Laptop and hosts share this machine's cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.remote.inspected import inspect_data, inspect_engine

from benchmarks.common import SPARKWRIGHT
from benchmarks.delay_proxy import DelayProxy
from benchmarks.status import STARTED_S, Lab

RUNS = 7


def main() -> None:
    """Print a line for each round-trip time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    count = parser.parse_args().hosts
    print("  ".join(f"{name:>12}" for name in ("hosts", "round trip", "first call", "status", "server ready")))
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder, inspect_engine(inspect_data(STARTED_S)) as docker_host:
        lab = Lab(Path(folder), count, docker_host)
        try:
            for rtt_ms in (0, 40):
                lab.write_project({name: DelayProxy(sshd.port, rtt_ms / 1000).port for name, sshd in lab.hosts.items()})
                lab.status()  # copies the runtime if it is missing
                ready_s, first_s, later_s = anyio.run(measure_calls, lab)
                cells = (f"{count}", f"{rtt_ms} ms", f"{first_s:.2f} s", f"{later_s:.2f} s", f"{ready_s:.2f} s")
                print("  ".join(f"{cell:>12}" for cell in cells), flush=True)
        finally:
            lab.stop()


async def measure_calls(lab: Lab) -> tuple[float, float, float]:
    """Return the seconds to readiness, of the first call, and the median of later calls. Every host has to answer."""
    command, *words = [*SPARKWRIGHT, "mcp", "--project", str(lab.project)]
    started_s = time.perf_counter()
    server = StdioServerParameters(command=command, args=words, env=lab.env)
    async with Client(stdio_client(server)) as client:
        ready_s = time.perf_counter() - started_s
        calls_s = []
        for _ in range(RUNS + 1):
            called_s = time.perf_counter()
            answer = await client.call_tool("status", {"hosts": "all"})
            calls_s.append(time.perf_counter() - called_s)
            rows = (answer.structured_content or {}).get("hosts", [])
            if [row["state"] for row in rows] != ["ok"] * len(lab.hosts):
                sys.exit(f"not every host answered: {answer.content}")
    return ready_s, calls_s[0], statistics.median(calls_s[1:])


if __name__ == "__main__":
    main()
