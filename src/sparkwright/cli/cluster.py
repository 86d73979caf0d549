"""The `cluster.inspect` and `cluster.check` commands, for hosts that serve one model together."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit


@command(
    help={
        "write": "add `fabric:` to the host files that have none",
        "json": "one JSON object per host: links, fabric (from its file, or proposed)",
    }
)
def inspect(host: str = "", write: bool = False, json: bool = False) -> list[Exit]:
    """Show hosts' fast links, and the `fabric:` for their files.

    Reads RDMA adapters, interfaces, rates, MTU and addresses. Exit code 2 if a host file has no `fabric:` yet; --write adds it.
    """
    from sparkwright.app.queries import cluster_links

    return cluster_links.inspect(host, write=write, json=json)


@command(
    help={
        "bandwidth": "measure each link for four seconds with ib_write_bw, which uses its full rate",
        "json": "one JSON object: findings (host, check, verdict, evidence, fix, source), bad",
    }
)
def check(host: str = "", bandwidth: bool = False, json: bool = False) -> list[Exit]:
    """Check the links between the hosts of a cluster.

    Compares both halves of each port, rates, MTU, subnets, RoCE addresses, firmware, kernel and clocks, and tests each path
    between the hosts with a full-size frame. Changes nothing. Exit code: 0 no check failed (warnings are shown); 1 a check
    failed; 3 a host is unreachable; 4 a rate could not be measured.
    """
    from sparkwright.app.queries import cluster_links

    return cluster_links.check(host, bandwidth=bandwidth, json=json)


TASKS = {"cluster": [inspect, check]}
