"""A group is proved by the ranks of all its members' logs, and by nothing less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkwright.engines.vllm.member_log import MemberLog, of_members, proved

CASES = Path(__file__).parents[2] / "data/vllm-0.32.0-members"
HOSTS = ("spark1", "spark2")


def logs(case: str, **other: bytes | None) -> dict[str, bytes | None]:
    files = {"spark1": CASES / case / "head.log", "spark2": CASES / case / "worker.log"}
    return {**{host: path.read_bytes() if path.exists() else None for host, path in files.items()}, **other}


def test_the_ranks_of_a_real_group_prove_it() -> None:
    proof = proved(logs("tp2-ok"), HOSTS)
    assert proof.complete and dict(proof.ranks) == {"spark1": 0, "spark2": 1}
    assert (proof.missing, proof.unread, proof.transport) == ((), (), "gloo")
    assert json.loads(json.dumps(proof.to_json()))["members"]["spark2"]["rank"] == 1


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
def test_real_groups_that_are_none(case: str, verdict: str, sentence: str) -> None:
    """The member that ended by itself is named, not the one that lost it."""
    proof = proved(logs(case), HOSTS)
    assert (proof.verdict, proof.sentence[: len(sentence)]) == (verdict, sentence)
    assert not proof.complete


def test_a_log_that_is_absent_is_unknown_and_no_proof() -> None:
    for absent in (logs("tp2-ok", spark2=None), {"spark1": logs("tp2-ok")["spark1"]}):
        proof = proved(absent, HOSTS)
        assert (proof.verdict, proof.unread, proof.missing) == ("unknown", ("spark2",), (1,))
        assert proof.transport == "gloo", "of those that were read"


def test_an_intent_is_no_rank_and_an_empty_log_is_a_member_that_has_not_joined() -> None:
    hanging = (CASES / "worker-restarted-alone/worker.log").read_bytes()
    for text in (hanging, b""):
        proof = proved(logs("tp2-ok", spark2=text), HOSTS)
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
def test_ranks_of_another_group_are_no_proof(second: MemberLog, sentence: str) -> None:
    proof = of_members({"spark1": MemberLog(rank=0, world_size=2), "spark2": second}, HOSTS)
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
def test_a_group_is_as_fast_as_its_slowest_member(one: str, other: str, transport: str) -> None:
    first, second = MemberLog(0, 2, transport=one), MemberLog(1, 2, transport=other)  # type: ignore[arg-type]
    assert of_members({"spark1": first, "spark2": second}, HOSTS).transport == transport


def test_four_hosts() -> None:
    hosts = ("a", "b", "c", "d")
    members = {host: MemberLog(rank, 4) for rank, host in enumerate(hosts)}
    assert of_members(members, hosts).complete
    del members["c"]
    assert of_members(members, hosts).sentence == "no log of rank 2 (c)."


def test_a_member_that_is_warned_of_its_command_line_has_not_failed() -> None:
    """`--model` is warned of in the first lines, in the words with which an older release refused it."""
    whole = (CASES.parent / "vllm-0.32.0/hybrid-mamba-align/server.log").read_bytes()
    pending = b"".join(whole.splitlines(keepends=True)[:2])
    assert b"should provide the model as a positional" in pending
    assert proved({"spark1": pending, "spark2": pending}, HOSTS).verdict == "incomplete"
    refused = b"ValueError: With `vllm serve`, you should provide the model as a positional argument instead of via `--model`.\n"
    proof = proved({"spark1": refused, "spark2": pending}, HOSTS)
    assert (proof.verdict, proof.sentence) == ("failed", "rank 0 (spark1): no model is given to it.")
