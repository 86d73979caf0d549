"""The flags with which the members of a cluster find each other: vLLM's own multi-node backend, `mp`.

Sources: vLLM 0.17.1 to 0.33.0, engine/arg_utils.py, config/parallel.py and docs/serving/parallelism_scaling.md; a real group of
two of 0.32.0 on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.parallel import ClusterMember

TENSOR = "tensor-parallel-size"
PIPELINE = "pipeline-parallel-size"
MEMBERS = "nnodes"
RANK = "node-rank"
HEAD = "master-addr"
MASTER_PORT = "master-port"
HEADLESS = "headless"
API_SERVERS = "api-server-count"
BACKEND = "distributed-executor-backend"

DEFAULT_MASTER_PORT = 29501

#: flags that no recipe sets in a cluster, each with the key that sets it
SET_BY: Mapping[str, str] = {
    TENSOR: "parallel",
    PIPELINE: "parallel",
    MEMBERS: "parallel",
    RANK: "the order of the group's hosts",
    HEAD: "the group's `cluster.head`",
    MASTER_PORT: "the group's `cluster.port`",
    HEADLESS: "the group's `cluster.head`",
}


def of(member: ClusterMember) -> dict[str, Any]:
    """Return the flags of one member; None removes a flag of the recipe. They differ between members in the rank and what follows
    from it.

    None of them depends on the engine's version, which is known only once the image is there; a second deploy would otherwise
    build another command.
    """
    worker = member.rank > 0
    found: dict[str, Any] = {
        TENSOR: member.split.tensor,
        PIPELINE: member.split.pipeline,
        MEMBERS: member.split.hosts,
        RANK: member.rank,
        HEAD: member.head_address,
        MASTER_PORT: member.master_port,
        HEADLESS: True if worker else None,
    }
    if worker:  # it has no API; with --headless the engine refuses this option
        found[API_SERVERS] = None
    return found
