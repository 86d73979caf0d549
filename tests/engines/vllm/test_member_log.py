"""A member's log: only the line after the ranks have met proves its place, and NCCL's lines tell what carries the traffic."""

from pathlib import Path

import pytest

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.vllm.log import LOG
from sparkwright.engines.vllm.member_log import MemberLog, member
from tests.engines.vllm.group_proof import evaluate_group, evaluate_members

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
def test_a_rank_is_read_from_the_log_of_each_release(fields: str) -> None:
    line = f"(Worker pid=7) INFO 10-20 10:00:09 [parallel_state.py:1] rank 1 in world size 2 is assigned as {fields}\n"
    message = member(LAUNCHED + INTENT + line)
    assert (message.rank, message.world_size, message.evidence["rank"]) == (1, 2, line.strip())


def test_an_intended_rank_is_not_an_assigned_rank() -> None:
    message = member(LAUNCHED + INTENT)
    assert (message.rank, message.world_size, message.intended_rank, message.version) == (None, None, 1, "0.32.0")


def test_a_restart_discards_the_previous_rank() -> None:
    """`docker logs` strings restarts together; a worker prints no arguments, so its own first line begins a start."""
    ended = "(MainProcess pid=1) ERROR 10-20 10:00:30 [m.py:3] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.\n"
    before = member(LAUNCHED + INTENT + ASSIGNED + ended)
    assert (before.rank, before.failure) == (1, "the process of rank 1 was killed or crashed.")
    again = member(LAUNCHED + INTENT + ASSIGNED + ended + LAUNCHED + INTENT)
    assert (again.rank, again.failure, again.intended_rank) == (None, "", 1)


@pytest.mark.parametrize(
    ("lines", "transport"),
    [
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1"), "rdma"),
        (("Channel 09/0 : 1[0] -> 0[0] [send] via NET/IBext_v10/1",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA",), "rdma"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0",), "sockets"),
        (("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/0"), "sockets"),
        (("Using network IB",), "unknown"),  # an intention
        ((), "unknown"),
    ],
)  # fmt: skip
def test_the_transport_is_read_from_the_channels(lines: tuple[str, ...], transport: str) -> None:
    message = member(LAUNCHED + INTENT + ASSIGNED + "".join(f"{SPARK}{line}\n" for line in lines))
    assert message.transport == transport
    assert bool(message.evidence.get("transport")) == (transport != "unknown")


def test_network_nccl_version_and_adapters_are_read() -> None:
    result = f"{SPARK}NET/IB : No device found.\n{SPARK}Using network Socket\n"
    version = "(Worker pid=7) INFO 10-20 10:00:05 [pynccl.py:111] vLLM is using nccl==2.28.9\n"
    message = member(LAUNCHED + result + version)
    assert (message.network, message.nccl) == ("Socket", "2.28.9")
    assert "No device found" in message.evidence["adapters_found"]


def test_sockets_instead_of_rdma_are_a_warning() -> None:
    state = read_log(
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
        ("worker-never-joins/head", None, "1 of 2 members joined within 61 s: the cause is in the log of the missing member."),
        ("head-never-comes/worker", None, "the head at 127.0.0.1:29555 did not answer: see its own log, and whether the hosts reach each other over the fabric."),
        ("master-port-taken/head", None, "its master port 29555 is in use on this host: find the process with `ss -ltnp`, or choose another `cluster.port`."),
        ("master-port-taken/worker", None, ""),  # it hangs at a stranger's port
        ("worker-restarted-alone/worker", None, ""),  # it hangs at the old head's
        ("worker-rank-killed-idle/worker", 1, "the process of rank 1 was killed or crashed."),
        ("worker-rank-killed-idle/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
        ("worker-killed-under-load/worker", 1, ""),  # SIGKILL of all of it
        ("worker-killed-under-load/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
        ("pp2-no-eager/worker", 1, "the process of rank 1 was killed or crashed."),
        ("pp2-no-eager/head", 0, "the connection to the member at 127.0.0.1 was lost: its process exited, or the network failed."),
    ],
)  # fmt: skip
def test_real_members(log: str, rank: int | None, failure: str) -> None:
    message = member((CASES / f"{log}.log").read_bytes())
    assert (message.rank, message.failure, message.version) == (rank, failure, "0.32.0")
    assert message.world_size == (None if rank is None else 2)
    assert message.transport == ("unknown" if rank is None else "gloo")


def test_the_stages_of_a_worker_are_read() -> None:
    assert member((CASES / "tp2-ok/head.log").read_bytes()).stage == "ready"
    assert member((CASES / "tp2-ok/worker.log").read_bytes()).stage == "compile"


# A group is proved by the ranks of all its members' logs, and by nothing less.


HOSTS = ("spark1", "spark2")


def read_member_logs(case: str, **other: bytes | None) -> dict[str, bytes | None]:
    files = {"spark1": CASES / case / "head.log", "spark2": CASES / case / "worker.log"}
    return {**{host: path.read_bytes() if path.exists() else None for host, path in files.items()}, **other}


def test_a_real_group_is_proved_by_its_ranks() -> None:
    proof = evaluate_group(read_member_logs("tp2-ok"), HOSTS)
    assert proof.complete and dict(proof.ranks) == {"spark1": 0, "spark2": 1}
    assert (proof.missing, proof.unread, proof.transport) == ((), (), "gloo")
    assert proof.members["spark2"].rank == 1


@pytest.mark.parametrize(
    ("case", "verdict", "sentence"),
    [
        ("head-killed", "unknown", "no log of rank 0 (spark1)."),
        ("worker-never-joins", "failed", "rank 0 (spark1): 1 of 2 members joined"),
        ("head-never-comes", "failed", "rank 1 (spark2): the head at 127.0.0.1:29555 did not answer"),
        ("master-port-taken", "failed", "rank 0 (spark1): its master port 29555 is in use"),
        ("worker-rank-killed-idle", "failed", "rank 1 (spark2): the process of rank 1"),
        ("pp2-no-eager", "failed", "rank 1 (spark2): the process of rank 1"),
        ("worker-killed-under-load", "failed", "rank 0 (spark1): the connection to the member"),
    ],
)
def test_real_groups_that_are_incomplete_or_failed(case: str, verdict: str, sentence: str) -> None:
    """The member that ended by itself is named, not the one that lost it."""
    proof = evaluate_group(read_member_logs(case), HOSTS)
    assert (proof.verdict, proof.sentence[: len(sentence)]) == (verdict, sentence)
    assert not proof.complete


def test_a_missing_log_is_unknown() -> None:
    for absent in (read_member_logs("tp2-ok", spark2=None), {"spark1": read_member_logs("tp2-ok")["spark1"]}):
        proof = evaluate_group(absent, HOSTS)
        assert (proof.verdict, proof.unread, proof.missing) == ("unknown", ("spark2",), (1,))
        assert proof.transport == "gloo", "of those that were read"


def test_an_intended_rank_or_an_empty_log_is_incomplete() -> None:
    hanging = (CASES / "worker-restarted-alone/worker.log").read_bytes()
    for text in (hanging, b""):
        proof = evaluate_group(read_member_logs("tp2-ok", spark2=text), HOSTS)
        assert (proof.verdict, proof.sentence) == ("incomplete", "not joined: rank 1 (spark2).")
        assert proof.missing == (1,)


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (MemberLog(rank=0, world_size=2), "spark2 is rank 0, not 1."),
        (MemberLog(rank=0, world_size=1), "spark2 is in a group of 1, not 2."),
        (MemberLog(rank=1, world_size=3), "spark2 is in a group of 3, not 2."),
    ],
)
def test_ranks_of_another_group_are_contradictory(second: MemberLog, sentence: str) -> None:
    proof = evaluate_members({"spark1": MemberLog(rank=0, world_size=2), "spark2": second}, HOSTS)
    assert (proof.verdict, proof.sentence) == ("contradictory", sentence)


@pytest.mark.parametrize(
    ("one", "other", "transport"),
    [
        ("rdma", "rdma", "rdma"),
        ("rdma", "sockets", "sockets"),
        ("unknown", "sockets", "sockets"),
        ("rdma", "unknown", "unknown"),
    ],
)
def test_a_group_has_the_transport_of_its_slowest_member(one: str, other: str, transport: str) -> None:
    first, second = MemberLog(0, 2, transport=one), MemberLog(1, 2, transport=other)  # type: ignore[arg-type]
    assert evaluate_members({"spark1": first, "spark2": second}, HOSTS).transport == transport


def test_a_group_of_four_hosts() -> None:
    hosts = ("a", "b", "c", "d")
    members = {host: MemberLog(rank, 4) for rank, host in enumerate(hosts)}
    assert evaluate_members(members, hosts).complete
    del members["c"]
    assert evaluate_members(members, hosts).sentence == "no log of rank 2 (c)."


def test_a_warning_about_the_command_line_is_not_a_failure() -> None:
    """`--model` is warned of in the first lines, in the words with which an older release refused it."""
    complete = (CASES.parent / "vllm-0.32.0/hybrid-mamba-align/server.log").read_bytes()
    pending = b"".join(complete.splitlines(keepends=True)[:2])
    assert b"should provide the model as a positional" in pending
    assert evaluate_group({"spark1": pending, "spark2": pending}, HOSTS).verdict == "incomplete"
    refused = b"ValueError: With `vllm serve`, you should provide the model as a positional argument instead of via `--model`.\n"
    proof = evaluate_group({"spark1": refused, "spark2": pending}, HOSTS)
    assert (proof.verdict, proof.sentence) == ("failed", "rank 0 (spark1): its arguments name no model.")
