"""A member's log: only the line after the ranks have met proves its place, and NCCL's lines tell what carries the traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read
from sparkwright.engines.vllm.log import LOG
from sparkwright.engines.vllm.member_log import member

CASES = Path(__file__).parents[2] / "data/vllm-0.32.0-members"
LAUNCHED = "(MainProcess pid=1) INFO 10-20 10:00:00 [serve.py:224] Launching vLLM (v0.32.0) headless multiproc executor, with head node address 10.0.0.1:29501 for torch.distributed process group.\n"
INTENT = "(Worker pid=7) INFO 10-20 10:00:01 [parallel_state.py:1906] world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501 backend=nccl\n"
ASSIGNED = "(Worker pid=7) INFO 10-20 10:00:09 [parallel_state.py:2350] rank 1 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 1, EP rank N/A\n"
SPARK = "(Worker pid=7) spark2:91:113 [0] NCCL INFO "


@pytest.mark.parametrize(
    "fields",
    [
        "DP rank 0, PP rank 0, TP rank 1, EP rank 1",  # 0.11.2
        "DP rank 0, PP rank 0, PCP rank 0, TP rank 1, EP rank N/A",  # 0.17.1
        "DP rank 0, PP rank 0, PCP rank 0, TP rank 1, EP rank N/A, EPLB rank N/A",
        "DP rank 0, PP rank 1, PCP rank 0, TP rank 0, ETP rank 1, EP rank N/A, EPLB rank N/A",  # 0.32.0
    ],
)
def test_a_rank_is_read_in_every_releases_spelling(fields: str) -> None:
    line = f"(Worker pid=7) INFO 10-20 10:00:09 [parallel_state.py:1] rank 1 in world size 2 is assigned as {fields}\n"
    told = member(LAUNCHED + INTENT + line)
    assert (told.rank, told.world_size, told.evidence["rank"]) == (1, 2, line.strip())


def test_what_is_said_before_the_ranks_meet_proves_nothing() -> None:
    told = member(LAUNCHED + INTENT)
    assert (told.rank, told.world_size, told.intended_rank, told.version) == (None, None, 1, "0.32.0")


def test_a_restart_forgets_the_rank_of_the_start_before() -> None:
    """`docker logs` strings restarts together; a worker prints no arguments, so its own first line begins a start."""
    ended = "(MainProcess pid=1) ERROR 10-20 10:00:30 [m.py:3] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.\n"
    before = member(LAUNCHED + INTENT + ASSIGNED + ended)
    assert (before.rank, before.failure) == (1, "the process of rank 1 was killed or crashed.")
    again = member(LAUNCHED + INTENT + ASSIGNED + ended + LAUNCHED + INTENT)
    assert (again.rank, again.failure, again.intended_rank) == (None, "", 1)


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        (
            ("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1"),
            "rdma",
        ),
        (("Channel 09/0 : 1[0] -> 0[0] [send] via NET/IBext_v10/1",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0",), "sockets"),
        (
            ("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/0"),
            "sockets",
        ),
        (("Using network IB",), "unknown"),  # an intention
        ((), "unknown"),
    ],
)
def test_what_carries_the_channels(lines: tuple[str, ...], transport: str) -> None:
    told = member(LAUNCHED + INTENT + ASSIGNED + "".join(f"{SPARK}{line}\n" for line in lines))
    assert told.transport == transport
    assert bool(told.evidence.get("transport")) == (transport != "unknown")


def test_nccls_network_version_and_adapters() -> None:
    said = f"{SPARK}NET/IB : No device found.\n{SPARK}Using network Socket\n"
    version = "(Worker pid=7) INFO 10-20 10:00:05 [pynccl.py:111] vLLM is using nccl==2.28.9\n"
    told = member(LAUNCHED + said + version)
    assert (told.network, told.nccl) == ("Socket", "2.28.9")
    assert "No device found" in told.evidence["adapters_found"]


def test_sockets_instead_of_rdma_are_a_warning_of_any_log() -> None:
    state = read(
        LAUNCHED + f"{SPARK}NET/IB : No device found.\n{SPARK}Channel 00/0 : 1[0] -> 0[0] via NET/Socket/0\n" * 9, LOG
    )
    assert [warning.rpartition("NCCL INFO ")[2] for warning in state.warnings] == [
        "NET/IB : No device found.",
        "Channel 00/0 : 1[0] -> 0[0] via NET/Socket/0",
    ]


@pytest.mark.parametrize(
    ("log", "rank", "failure"),
    [
        ("tp2-ok/head", 0, ""),
        ("tp2-ok/worker", 1, ""),
        ("head-killed/worker", 1, ""),  # it does not notice
        ("worker-never-joins/head", None, "1 of 2 members joined within 61 s: the log of the missing member says why."),
        ("head-never-comes/worker", None, "the head at 127.0.0.1:29555 did not answer: see its own log, and whether the hosts reach each other over the fabric."),
        ("master-port-taken/head", None, "its master port 29555 is in use on this host: `ss -ltnp` shows by what; or choose another `cluster.port`."),
        ("master-port-taken/worker", None, ""),  # it hangs at a stranger's port
        ("worker-restarted-alone/worker", None, ""),  # it hangs at the old head's
        ("worker-rank-killed-idle/worker", 1, "the process of rank 1 was killed or crashed."),
        ("worker-rank-killed-idle/head", 0, "the connection to the member at 127.0.0.1 was lost: its process ended, or the network between them did."),
        ("worker-killed-under-load/worker", 1, ""),  # SIGKILL of all of it
        ("worker-killed-under-load/head", 0, "the connection to the member at 127.0.0.1 was lost: its process ended, or the network between them did."),
        ("pp2-no-eager/worker", 1, "the process of rank 1 was killed or crashed."),
        ("pp2-no-eager/head", 0, "the connection to the member at 127.0.0.1 was lost: its process ended, or the network between them did."),
    ],
)  # fmt: skip
def test_real_members(log: str, rank: int | None, failure: str) -> None:
    told = member((CASES / f"{log}.log").read_bytes())
    assert (told.rank, told.failure, told.version) == (rank, failure, "0.32.0")
    assert told.world_size == (None if rank is None else 2)
    assert told.transport == ("unknown" if rank is None else "gloo")


def test_a_workers_stages_are_read_like_a_heads() -> None:
    assert member((CASES / "tp2-ok/head.log").read_bytes()).stage == "ready"
    assert member((CASES / "tp2-ok/worker.log").read_bytes()).stage == "compile"
