"""The flags by which members of a cluster find each other: vLLM's own multi-node backend, `mp`.

Sources: vLLM 0.17.1 to 0.33.0, engine/arg_utils.py, config/parallel.py and docs/serving/parallelism_scaling.md; a real group of two
of 0.32.0 on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.engines.parallel import Seat
from sparkwright.engines.vllm.versions import at_least

TENSOR = "tensor-parallel-size"
PIPELINE = "pipeline-parallel-size"
MEMBERS = "nnodes"
RANK = "node-rank"
HEAD = "master-addr"
MASTER_PORT = "master-port"
HEADLESS = "headless"
JOIN_TIMEOUT = "distributed-timeout-seconds"
API_SERVERS = "api-server-count"
BACKEND = "distributed-executor-backend"

DEFAULT_MASTER_PORT = 29501
JOIN_TIMEOUT_SINCE = "0.28.0"
#: NCCL's own default, said so that it holds for every backend (gloo waits 1800 s). A deploy sees a missing member earlier; a
#: shorter limit would also bound how long one member may compile while the others wait for it.
JOIN_TIMEOUT_S = 600

#: flags that no recipe sets in a cluster, each with the key that sets it
SET_BY: Mapping[str, str] = {
    TENSOR: "parallel",
    PIPELINE: "parallel",
    MEMBERS: "parallel",
    RANK: "the order of the group's hosts",
    HEAD: "the group's `cluster.head`",
    MASTER_PORT: "the group's `cluster.port`",
    HEADLESS: "the group's `cluster.head`",
    JOIN_TIMEOUT: "the cluster's own time limit",
}


def of(seat: Seat) -> dict[str, Any]:
    """The flags of one member; None takes one out of the recipe's. They are the same on all but for its rank and what follows from it."""
    worker = seat.rank > 0
    found: dict[str, Any] = {
        TENSOR: seat.split.tensor,
        PIPELINE: seat.split.pipeline,
        MEMBERS: seat.split.hosts,
        RANK: seat.rank,
        HEAD: seat.head_address,
        MASTER_PORT: seat.master_port,
        HEADLESS: True if worker else None,
    }
    if at_least(seat.version, JOIN_TIMEOUT_SINCE):
        found[JOIN_TIMEOUT] = JOIN_TIMEOUT_S
    if worker:  # it has no API; with --headless the engine refuses this option
        found[API_SERVERS] = None
    return found
