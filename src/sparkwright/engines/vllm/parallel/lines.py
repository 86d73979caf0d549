"""Lines of a member's log about its group, with the versions and sources they were read in.

real: a group of two of vLLM 0.32.0 on a CPU, in tests/data. source: vLLM of the versions named, NCCL 2.30. seen: logs of GB10
users. NCCL's own lines are only there with NCCL_DEBUG=INFO.
"""

from __future__ import annotations

from sparkwright.engines.log.line import Line, line

#: the group exists: printed after the ranks have met. real; 0.11.2 to 0.33, with ever more fields after the second number (source)
ASSIGNED = r"\brank (\d{1,6}) in world size (\d{1,6}) is assigned as DP rank"
#: the intention of a rank that has not met any other: proves nothing, but names the rank. real; source 0.11.2 to 0.33
INTENDED = r"\bworld_size=(\d{1,6}) rank=(\d{1,6}) local_rank=\d+ distributed_init_method=\S+ backend=(\w{1,40})"
INTENT = " local_rank="

#: readings by name, each the first group of a pattern; later lines win
VALUES: tuple[tuple[str, Line], ...] = (
    ("rank", line("DP rank ", ASSIGNED)),
    ("world_size", line("DP rank ", ASSIGNED.replace(r"(\d{1,6}) in", r"\d{1,6} in"))),
    ("intended_world_size", line(INTENT, INTENDED.replace(r"rank=(\d{1,6}) local", r"rank=\d{1,6} local"))),
    ("intended_rank", line(INTENT, INTENDED.replace(r"world_size=(\d{1,6})", r"world_size=\d{1,6}"))),
    ("backend", line(INTENT, r"\bworld_size=\d+ rank=\d+ local_rank=\d+ \S+ backend=(\w{1,40})")),
    # source 0.11 to 0.33: on rank 0 only
    ("nccl", line("is using nccl==", r"vLLM is using nccl==([\w.+-]{1,40})")),
    # seen: IB, Socket, and IBext_v10 with NVIDIA's plugin
    ("network", line("Using network ", r"NCCL INFO Using network (\w{1,40})")),
)

#: a channel between two members, and its transport. seen
RDMA = line("via NET/IB", r"via NET/IB(?:ext_v\d+)?/\d+")
SOCKETS = line("via NET/Socket", r"via NET/Socket/\d+")
NO_ADAPTER = line("NET/IB : No device found")

#: readings implied by a line
FIXED: tuple[tuple[str, Line, bool], ...] = (
    ("over_rdma", RDMA, True),
    ("over_sockets", SOCKETS, True),
    ("adapters_found", NO_ADAPTER, False),
    ("adapters_found", line("NET/IB : Using ", r"NET/IB : Using \[\d+\]\S+:\d+/RoCE"), True),
)
#: lines that a person should see
WARNINGS: tuple[Line, ...] = (SOCKETS, NO_ADAPTER)
