"""The seconds per call of the tool `status` of `sparkwright mcp`, for eight hosts.

    make bench-mcp_status           (needs openssh-server and the extra `mcp`)

The hosts are those of status.py: sshds on loopback, behind a proxy that adds the round-trip time. The client is the official
SDK's, over stdio. Laptop and hosts share this machine's cores.
"""

import statistics
import sys
import time

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from benchmarks.common import SPARKWRIGHT
from benchmarks.delay_proxy import DelayProxy
from benchmarks.status import Lab, create_parser, format_cells, run_lab

RUNS = 7


def main() -> None:
    count = create_parser(__doc__).parse_args().hosts
    print(format_cells("hosts", "round trip", "first call", "status", "ready"))
    with run_lab(count) as lab:
        for rtt_ms in (0, 40):
            lab.write_project({name: DelayProxy(sshd.port, rtt_ms / 1000).port for name, sshd in lab.hosts.items()})
            lab.status()  # copies the runtime if it is missing
            times = anyio.run(measure_calls, lab)
            print(format_cells(str(count), f"{rtt_ms} ms", *(f"{seconds:.2f} s" for seconds in times)), flush=True)


async def measure_calls(lab: Lab) -> tuple[float, float, float]:
    """Return the seconds of the first call, the median of later ones, and those until readiness. Every host must answer."""
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
    return calls_s[0], statistics.median(calls_s[1:]), ready_s


if __name__ == "__main__":
    main()
