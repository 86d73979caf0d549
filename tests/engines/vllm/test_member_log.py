"""Logs of a cluster's members: the assigned rank, the failure, and the transport that NCCL uses."""

from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.engines.vllm.member_log import parse_member_log

CASES = Path(__file__).parents[2] / "data/vllm-0.32.0-members"
LAUNCHED = "(MainProcess pid=1) INFO 10-20 10:00:00 [serve.py:224] Launching vLLM (v0.32.0) headless multiproc executor, with head node address 10.0.0.1:29501 for torch.distributed process group.\n"
INTENDED = "(Worker pid=7) INFO 10-20 10:00:01 [parallel_state.py:1906] world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501 backend=nccl\n"
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
def test_a_rank_is_read_from_the_log_of_each_release(fields: str) -> None:
    line = f"(Worker pid=7) INFO 10-20 10:00:09 [parallel_state.py:1] rank 1 in world size 2 is assigned as {fields}\n"
    log = parse_member_log(LAUNCHED + INTENDED + line)
    assert (log.rank, log.world_size, log.evidence["rank"]) == (1, 2, line.strip())


def test_an_intended_rank_is_not_an_assigned_rank() -> None:
    log = parse_member_log(LAUNCHED + INTENDED)
    assert (log.rank, log.world_size, log.intended_rank, log.version) == (None, None, 1, "0.32.0")


def test_a_restart_discards_the_previous_rank() -> None:
    """`docker logs` concatenates restarts; a worker prints no arguments, so its first line begins a start."""
    end = "(MainProcess pid=1) ERROR 10-20 10:00:30 [m.py:3] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.\n"
    before = parse_member_log(LAUNCHED + INTENDED + ASSIGNED + end)
    assert (before.rank, before.failure) == (1, "the process of rank 1 was killed or crashed.")
    restarted = parse_member_log(LAUNCHED + INTENDED + ASSIGNED + end + LAUNCHED + INTENDED)
    assert (restarted.rank, restarted.failure, restarted.intended_rank) == (None, "", 1)


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1"), "rdma"),
        (("Channel 09/0 : 1[0] -> 0[0] [send] via NET/IBext_v10/1",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0",), "sockets"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/0"), "sockets"),
        (("Using network IB",), "unknown"),  # intended, not used
        ((), "unknown"),
    ],
)  # fmt: skip
def test_the_transport_is_read_from_the_channels(lines: tuple[str, ...], transport: str) -> None:
    log = parse_member_log(LAUNCHED + INTENDED + ASSIGNED + "".join(f"{SPARK}{line}\n" for line in lines))
    assert log.transport == transport
    assert bool(log.evidence.get("transport")) == (transport != "unknown")


def test_network_nccl_version_and_adapters_are_read() -> None:
    network = f"{SPARK}NET/IB : No device found.\n{SPARK}Using network Socket\n"
    version = "(Worker pid=7) INFO 10-20 10:00:05 [pynccl.py:111] vLLM is using nccl==2.28.9\n"
    log = parse_member_log(LAUNCHED + network + version)
    assert (log.network, log.nccl) == ("Socket", "2.28.9")
    assert "No device found" in log.evidence["adapters_found"]


def test_sockets_instead_of_rdma_are_a_warning() -> None:
    warnings = ["NET/IB : No device found.", "Channel 00/0 : 1[0] -> 0[0] via NET/Socket/0"]
    state = read_log(LAUNCHED + "".join(f"{SPARK}{warning}\n" for warning in warnings) * 9, LOG)
    assert [warning.rpartition("NCCL INFO ")[2] for warning in state.warnings] == warnings


@pytest.mark.parametrize(
    ("name", "rank", "failure"),
    [
        ("tp2-ok/head", 0, ""),
        ("tp2-ok/worker", 1, ""),
        ("head-killed/worker", 1, ""),  # a worker does not notice
        ("worker-never-joins/head", None, "1 of 2 members joined within 61 s: the cause is in the log of the missing member."),
        ("head-never-comes/worker", None, "the head at 127.0.0.1:29555 did not answer: see its own log, and check that the hosts can reach each other over the fabric."),
        ("master-port-taken/head", None, "its master port 29555 is in use on this host: find the process with `ss -ltnp`, or choose another `cluster.port`."),
        ("master-port-taken/worker", None, ""),  # hangs at a foreign port
        ("worker-restarted-alone/worker", None, ""),  # hangs at the port of the previous head
        ("worker-rank-killed-idle/worker", 1, "the process of rank 1 was killed or crashed."),
        ("worker-rank-killed-idle/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
        ("worker-killed-under-load/worker", 1, ""),  # SIGKILL of all processes
        ("worker-killed-under-load/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
        ("pp2-no-eager/worker", 1, "the process of rank 1 was killed or crashed."),
        ("pp2-no-eager/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
    ],
)  # fmt: skip
def test_real_members(name: str, rank: int | None, failure: str) -> None:
    log = parse_member_log((CASES / f"{name}.log").read_bytes())
    assert (log.rank, log.failure, log.version) == (rank, failure, "0.32.0")
    assert log.world_size == (None if rank is None else 2)
    assert log.transport == ("unknown" if rank is None else "gloo")


def test_the_stages_of_a_worker_are_read() -> None:
    assert parse_member_log((CASES / "tp2-ok/head.log").read_bytes()).stage == "ready"
    assert parse_member_log((CASES / "tp2-ok/worker.log").read_bytes()).stage == "compile"


def test_a_warning_about_the_command_line_is_not_a_failure() -> None:
    """The first lines contain a warning about `--model`, with the text of an older release's refusal."""
    complete = (CASES.parent / "vllm-0.32.0/hybrid-mamba-align/server.log").read_bytes()
    start = b"".join(complete.splitlines(keepends=True)[:2])
    assert b"should provide the model as a positional" in start
    assert parse_member_log(start).failure == ""
    refused = b"ValueError: With `vllm serve`, you should provide the model as a positional argument instead of via `--model`.\n"
    assert parse_member_log(refused).failure == "its arguments name no model."
