"""The `cluster.inspect` and `cluster.check` commands, for hosts that serve one model together."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit


@command(
    help={
        "write": "add `fabric:` to the host files that have none",
        "json": "one JSON object per host: links, fabric (what its file says, or should say)",
    }
)
def inspect(host: str = "", write: bool = False, json: bool = False) -> list[Exit]:
    """Show the fast links of hosts, and what to write of them.

    Reads RDMA adapters, interfaces, rates, MTU and addresses. Exit code 2 when a host file has no `fabric:` yet; --write adds it.
    """
    from sparkwright.app.queries import cluster_links

    return cluster_links.inspect(host, write=write, json=json)


@command(
    help={
        "bandwidth": "measure each link for four seconds with ib_write_bw; it takes the whole link",
        "json": "one JSON object: findings (host, check, verdict, evidence, fix, source), bad",
    }
)
def check(host: str = "", bandwidth: bool = False, json: bool = False) -> list[Exit]:
    """Check the links between the hosts of a cluster.

    Both halves of each port, rates, MTU, subnets, RoCE addresses, firmware, kernel and clocks, and each way between the hosts
    with a whole frame. Changes nothing. Exit code: 0 fit for a cluster (warnings are shown); 1 something is wrong;
    3 unreachable; 4 a rate could not be measured.
    """
    from sparkwright.app.queries import cluster_links

    return cluster_links.check(host, bandwidth=bandwidth, json=json)


TASKS = {"cluster": [inspect, check]}
