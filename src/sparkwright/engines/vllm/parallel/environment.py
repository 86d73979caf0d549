"""The environment variables and container options of a cluster's members.

Sources: vLLM 0.33.0 utils/network_utils.py, device_communicators/shm_broadcast.py and docs/usage/security.md; NCCL 2.30's
documentation of its variables; a real group of two of 0.32.0 (duration of a stop, effect of an unset time limit).
"""

from __future__ import annotations

from typing import Any

from sparkwright.engines.parallel import ClusterMember

#: the address for vLLM's message queue; without it, that of the route to the internet
OWN_ADDRESS = "VLLM_HOST_IP"
#: the interface for the members' TCP: NCCL's bootstrap, gloo, tensorpipe
INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: the RDMA adapters; others are not used. No NCCL_IB_GID_INDEX: an index moves, and a pin that no longer fits hangs
ADAPTERS = "NCCL_IB_HCA"
#: a group with a lost or hung member ends itself after this time; 300 s by default, during which /health answers 200
STEP_TIMEOUT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
STEP_TIMEOUT_S = 90
#: makes NCCL log the network that it uses, but not every operation
TRACED_BY = "NCCL_DEBUG"
TRACE = {TRACED_BY: "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}

#: variables that no recipe sets in a cluster; it may override STEP_TIMEOUT and TRACE
VARIABLES = (OWN_ADDRESS, *INTERFACE, ADAPTERS)

#: a worker takes 11 to 12.4 s to stop (5 s, SIGTERM, 4 s, SIGKILL of its rank); Docker kills after 10
STOP_TIMEOUT_S = 30

#: RDMA pins memory and opens the adapters' devices; without any of them NCCL falls back to sockets
RDMA: dict[str, Any] = {"devices": ["/dev/infiniband"], "cap_add": ["IPC_LOCK"]}
MEMLOCK = {"memlock": "-1"}
#: NCCL opens a socket and a queue pair for every channel and member
NOFILE = {"nofile": "1048576"}


def of(member: ClusterMember) -> dict[str, str]:
    """Return the variables of one member. Interfaces and adapters that its host does not name are left for NCCL to find."""
    found = {OWN_ADDRESS: member.address}
    if member.interfaces:
        found |= dict.fromkeys(INTERFACE, member.interfaces[0])
    if member.adapters:
        found[ADAPTERS] = ",".join(member.adapters)
    if member.rank == 0:
        found[STEP_TIMEOUT] = str(STEP_TIMEOUT_S)
    return found | (TRACE if member.traced else {})


def options(member: ClusterMember) -> dict[str, Any]:
    """Return the container options of one member, by their names in a recipe. Never privileged; /dev/shm is as the recipe sets
    it."""
    network: dict[str, Any] = {"network": "host"}
    if not member.adapters:
        return {**network, "ulimits": NOFILE}
    return {**network, **RDMA, "ulimits": {**MEMLOCK, **NOFILE}}
