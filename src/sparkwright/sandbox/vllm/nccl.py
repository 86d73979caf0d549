"""NCCL's log lines on its transport, with NCCL_DEBUG=INFO: as NCCL 2.30 writes them, and as observed on GB10."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

LABEL = "spark:141:141 [0] NCCL INFO"


def lines(rank: int, world: int, env: Mapping[str, str], *, sockets: bool) -> Iterator[str]:
    """Yield the NCCL log lines of one member after it has joined the others.

    Yields nothing if the container has no adapter: the transport is then unproven.

    Args:
        rank: the member's rank.
        world: number of ranks.
        env: environment variables of its container.
        sockets: no adapter is usable, so NCCL falls back to sockets.
    """
    adapters = [name for name in env.get("NCCL_IB_HCA", "").split(",") if name]
    if env.get("NCCL_DEBUG") != "INFO" or not adapters:
        return
    interface, address = env.get("NCCL_SOCKET_IFNAME", ""), env.get("VLLM_HOST_IP", "")
    yield f"{LABEL} Bootstrap: Using {interface}:{address}<0>"
    used = " ".join(f"[{n}]{name}:1/RoCE" for n, name in enumerate(adapters))
    yield (
        f"{LABEL} NET/IB : No device found."
        if sockets
        else f"{LABEL} NET/IB : Using {used} [RO]; OOB {interface}:{address}<0>"
    )
    network = "Socket" if sockets else "IB"
    yield f"{LABEL} Using network {network}"
    other = (rank + 1) % world
    for n in range(1 if sockets else len(adapters)):
        yield f"{LABEL} Channel {n:02d}/0 : {rank}[0] -> {other}[0] [send] via NET/{network}/{n}"
    yield f"{LABEL} comm 0x3fd9c2b0 rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId f01000 commId 0x5a1 - Init COMPLETE"
