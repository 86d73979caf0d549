"""vLLM's implementation of engines.parallel.Parallel: the flags, variables and container options of a cluster's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from sparkwright.engines.findings import Finding
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.parallel import ClusterMember, MemberSettings, Split
from sparkwright.engines.vllm import flags as vllm_flags
from sparkwright.engines.vllm import member_log
from sparkwright.engines.vllm.splits import SPLIT_RULES, SplitCase

# Environment variables and container options of a cluster's members.
#
# Sources: vLLM 0.33.0 utils/network_utils.py, device_communicators/shm_broadcast.py and docs/usage/security.md; NCCL 2.30's
# documentation of its variables; a real cluster of two members with 0.32.0 (duration of a stop, effect of an unset timeout).

#: address for vLLM's message queue; by default, the address of the interface with the default route
HOST_IP_VARIABLE = "VLLM_HOST_IP"
#: interface for TCP between the members: NCCL's bootstrap, gloo, tensorpipe
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
#: RDMA adapters that NCCL uses. NCCL_IB_GID_INDEX is not set: indexes change, and NCCL hangs with a stale one
ADAPTERS_VARIABLE = "NCCL_IB_HCA"
#: time after which a group with a lost or hung member exits; /health answers 200 until then. vLLM's default is 300 s
STEP_TIMEOUT_VARIABLE = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
STEP_TIMEOUT_S = 90
#: variables that make NCCL log the network that it uses, but not every operation
TRACE = "NCCL_DEBUG"
TRACE_VARIABLES = {TRACE: "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}

#: variables that a recipe for a cluster must not set; it may set STEP_TIMEOUT_VARIABLE and TRACE
VARIABLES: Sequence[str] = (HOST_IP_VARIABLE, *INTERFACE_VARIABLES, ADAPTERS_VARIABLE)

#: a worker stops within 11 to 12.4 s (5 s, SIGTERM, 4 s, SIGKILL of its rank); Docker's default is 10 s
STOP_TIMEOUT_S = 30

#: access to the adapters' devices, and permission to pin memory; if either is missing, NCCL falls back to sockets
RDMA_OPTIONS: dict[str, Any] = {"devices": ["/dev/infiniband"], "cap_add": ["IPC_LOCK"]}
MEMLOCK_ULIMIT = {"memlock": "-1"}
#: NCCL opens a socket and a queue pair for every channel and member
NOFILE_ULIMIT = {"nofile": "1048576"}


def member_variables(member: ClusterMember) -> dict[str, str]:
    """Return the environment variables of a member. If the host configures no interfaces or adapters, NCCL selects them."""
    variables = {HOST_IP_VARIABLE: member.address}
    if member.interfaces:
        variables |= dict.fromkeys(INTERFACE_VARIABLES, member.interfaces[0])
    if member.adapters:
        variables[ADAPTERS_VARIABLE] = ",".join(member.adapters)
    if member.rank == 0:
        variables[STEP_TIMEOUT_VARIABLE] = str(STEP_TIMEOUT_S)
    return variables | (TRACE_VARIABLES if member.traced else {})


def container_options(member: ClusterMember) -> dict[str, Any]:
    """Return the container options of a member, by recipe key. The container is never privileged."""
    network: dict[str, Any] = {"network": "host"}
    if not member.adapters:
        return {**network, "ulimits": NOFILE_ULIMIT}
    return {**network, **RDMA_OPTIONS, "ulimits": {**MEMLOCK_ULIMIT, **NOFILE_ULIMIT}}


# Flags of a cluster's members, for vLLM's own multi-node backend, `mp`.
#
# Sources: vLLM 0.17.1 to 0.33.0, engine/arg_utils.py, config/parallel.py and docs/serving/parallelism_scaling.md; a real cluster
# of two members with 0.32.0 on a CPU.

MASTER_PORT = 29501

#: flags that a recipe for a cluster must not set, each with the key that sets it
RESERVED_FLAGS: Mapping[str, str] = {
    vllm_flags.TENSOR: "parallel",
    vllm_flags.PIPELINE: "parallel",
    vllm_flags.MEMBERS: "parallel",
    vllm_flags.RANK: "the order of the group's hosts",
    vllm_flags.HEAD_ADDRESS: "the group's `cluster.head`",
    vllm_flags.MASTER_PORT: "the group's `cluster.port`",
    vllm_flags.HEADLESS: "the group's `cluster.head`",
}


def member_flags(member: ClusterMember) -> dict[str, Any]:
    """Return the flags of a member; None removes a flag of the recipe.

    The flags do not depend on the engine's version, which is unknown until the image is present: otherwise the second deploy would
    build a different command from the first.
    """
    is_worker = member.rank > 0
    flags: dict[str, Any] = {
        vllm_flags.TENSOR: member.split.tensor,
        vllm_flags.PIPELINE: member.split.pipeline,
        vllm_flags.MEMBERS: member.split.hosts,
        vllm_flags.RANK: member.rank,
        vllm_flags.HEAD_ADDRESS: member.head_address,
        vllm_flags.MASTER_PORT: member.master_port,
        vllm_flags.HEADLESS: True if is_worker else None,
    }
    if is_worker:  # the engine refuses this option with --headless
        flags[vllm_flags.API_SERVERS] = None
    return flags


is_peer_failure = member_log.is_peer_failure


def member_settings(member: ClusterMember) -> MemberSettings:
    """Return the settings that a member is started with."""
    return MemberSettings(member_flags(member), member_variables(member), container_options(member), STOP_TIMEOUT_S)


def check(split: Split, flags: Mapping[str, Any], model: Mapping[str, Any], version: Version | None) -> list[Finding]:
    """Return the findings about a split of a model, errors first. flags: in any spelling."""
    return SPLIT_RULES.check(SplitCase(split, vllm_flags.normalize(flags), classify(model), version))
