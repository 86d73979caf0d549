"""Reasons why a member of a cluster did not start or failed: rows for `failures`, which a server on one host can have too.

Sources: real failures of a group of two with vLLM 0.32.0 in tests/data (marked real); PyTorch's socket.cpp and TCPStore.cpp; NCCL
2.30's init.cc, bootstrap.cc, ibvwrap.cc and net_ib; vLLM 0.32.0's config/parallel.py and config/model.py; reports of GB10 users
for the rest.
"""

from __future__ import annotations

from sparkwright.engines.log.last_words import Death
from sparkwright.engines.log.last_words import death as _row

FABRIC = "correct `fabric` in the host's file"
#: sentences of members that ended because of another, whose log has the details
OF_ANOTHER = ("members joined within", "did not answer", "the connection to the member", "RDMA to")
#: 22809 is 2.28.9
NCCL_VERSION = r"(\d)0?([1-9]?\d)(?=\d\d\b)0?([1-9]?\d)"
NO_HEAD = "the head at {0}:{1} did not answer: see its own log, and whether the hosts reach each other over the fabric."
#: the same for a server whose processes meet on its own host
NO_MEETING = "its processes could not meet at {0}:{1} on this host."

#: failures of a start
STARTS: tuple[Death, ...] = (
    # meeting
    _row(  # real
        "DistStoreError: Timed out",
        r"DistStoreError: Timed out after (\d+) seconds waiting for clients\. (\d+)/(\d+) clients joined",
        "{1} of {2} members joined within {0} s: the log of the missing member says why.",
    ),
    _row(  # real
        "DistNetworkError: The server socket has failed to listen",
        r"DistNetworkError: The server socket has failed to listen .{0,200}?port: (\d+),.{0,200}EADDRINUSE",
        "its master port {0} is in use on this host: `ss -ltnp` shows by what; or choose another `cluster.port`.",
    ),
    _row(  # real
        "DistNetworkError: The client socket has timed out",
        r"DistNetworkError: The client socket has timed out after \d+ms while trying to connect to \(([^,\s]{1,200}), (\d+)\)",
        NO_HEAD,
        alone=NO_MEETING,
    ),
    _row(
        "DistNetworkError: The client socket has failed to connect",
        r"DistNetworkError: The client socket has failed to connect .{0,100}?\(([^,\s]{1,200}), (\d+)\)",
        NO_HEAD,
        alone=NO_MEETING,
    ),
    # interfaces
    _row(
        "Unable to find address for: ",
        r"Unable to find address for: (\S{1,100})",
        f"this host has no interface {{0}} with an address (GLOO_SOCKET_IFNAME): {FABRIC}.",
    ),
    _row(
        "no socket interface found",
        r"Bootstrap ?: no socket interface found",
        f"this host has no interface of the name in NCCL_SOCKET_IFNAME: {FABRIC}.",
    ),
    _row(
        "Gloo connectFullMesh failed",
        "",
        "the members cannot connect to each other at the addresses that gloo chose: compare `fabric` of the hosts, and their firewalls.",
    ),
    # RDMA
    _row(
        "Mismatched NCCL version detected",
        r"Mismatched NCCL version detected ?: rank (\d{1,4}) version "
        rf"{NCCL_VERSION} rank (\d{{1,4}}) version {NCCL_VERSION}",
        "members have different NCCL versions (rank {0}: {1}.{2}.{3}, rank {4}: {5}.{6}.{7}): the image's own is the same on all; "
        "remove what replaces it (LD_PRELOAD, VLLM_NCCL_SO_PATH, a mount).",
    ),
    _row(
        "ibv_modify_qp failed",
        r"ibv_modify_qp failed with (?:error )?([^,]{1,80}?)(?:,|\s*$)",
        "RDMA to another member could not be set up ({0}): leave NCCL_IB_GID_INDEX unset, and compare addresses and MTU of the fabric.",
    ),
    _row(
        "ibv_reg_mr",
        r"ibv_reg_mr\w{0,20} failed with (?:error )?.{0,10}?Cannot allocate memory",
        "RDMA memory could not be registered: a known fault of kernel 7.0 on GB10 (boot 6.17, or with kho=off), or a memlock limit.",
    ),
    # the split
    _row(
        "is larger than the number of available GPUs",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "it was to use {0} GPUs, and this host has {1}: serve it from a cluster (`parallel` in the recipe).",
    ),
    _row(
        "Total number of attention heads",
        r"attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "its {0} attention heads do not divide by tensor-parallel-size {1}: use `parallel: {{pipeline: {1}}}`.",
    ),
    _row(
        "Number of experts in the model must be greater than 0",
        "",
        "the model has no experts for enable-expert-parallel to spread.",
    ),
    _row(
        "Pipeline parallelism is not supported for this model",
        "",
        "this engine cannot split this model between layers: use `parallel: {{tensor: ...}}`.",
    ),
)

#: failures of a member whose peer ended, in a start or later
LOST: tuple[Death, ...] = (
    _row(
        "NCCL error",
        r"NCCL error\b.{0,200}?remote process exited or there was a network error",
        "the connection to the member that NCCL talked to was lost: its process ended, or the network between them did.",
        alone="NCCL lost the process that it talked to.",
    ),
)

#: failures of a group that served; the first is closest to the cause
SERVING: tuple[Death, ...] = (
    _row(  # real: the rank is hung from here on, and its container runs
        "could not broadcast input array from shape",
        r"ValueError: could not broadcast input array from shape \((\d+),\) into shape \((\d+),\)",
        "a prompt of {0} tokens came to this rank, whose max-model-len is {1}: it is not that of the other members.",
        "always",
    ),
    _row(
        "Got completion from peer",
        r"Got completion from peer ([^<\s]{1,100})\S* with status=(\w+)",
        "RDMA to {0} failed while it served (status {1}): see that member's log, and compare MTU and link of both.",
    ),
    _row(  # real: TP when a member's process ends, PP when its rank does
        "gloo/transport/tcp/pair.cc",
        r"gloo/transport/tcp/pair\.cc:\d+\] (?:Connection closed by peer|(?:Read|Write) error) \[([^\]\s]{1,100})\]",
        "the connection to the member at {0} was lost: its process ended, or the network between them did.",
        alone="the connection between its processes was lost: one of them ended.",
    ),
    _row(  # real
        "RPC call to ",
        r"TimeoutError: RPC call to (\w{1,100}) timed out",
        "a rank did not answer {0} within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it is dead or hangs; see every member's log.",
        alone="its worker did not answer {0} within VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: it is dead or hangs.",
    ),
    _row(  # each engine of data parallelism counts its workers from 0
        "Worker proc VllmWorker-",
        r"EngineCore_DP(\d+)\b.{0,300}?Worker proc VllmWorker-(\d+) died unexpectedly",  # words: data
        "worker {1} of its data-parallel engine {0} was killed or crashed.",
        "always",
        "consequence",
    ),
    _row(  # real
        "Worker proc VllmWorker-",
        r"Worker proc VllmWorker-(\d+) died unexpectedly",  # words: data
        "the process of rank {0} was killed or crashed.",
        "always",
        "consequence",
        "its worker process was killed or crashed.",
    ),
)
