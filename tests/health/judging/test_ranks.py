"""The evaluation of an observation of a cluster's member."""

from dataclasses import replace
from typing import Any

import pytest

from sparkwright.health.judging.judge import evaluate_observation
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.record import Container, Machine, Rank, Server
from tests.health.judging.test_judge import FINE, NOW_S

HEAD = Rank("pair", 0, 2, 0, 2, "rdma", "ready")
WORKER = replace(HEAD, rank=1, group_rank=1)
CONTAINER = Container("glm", "abc", "running", 0, "no", None, NOW_S - 7200, verified=True)
ENDED = replace(CONTAINER, status="exited", exit_code=0, finished_s=NOW_S - 30)
SERVER = FINE.server


def observe_member(
    rank: Rank = WORKER, container: Container = CONTAINER, server: Server | None = None, **changes: Any
) -> Observation:
    """Return the observation of a member; a worker has no server."""
    member_server = server or (Server() if rank.rank else SERVER)
    return replace(FINE, rank=rank, container=container, server=member_server, restart_policy="no", **changes)


GONE = "a rank of its cluster is gone or hung"
UNJOINED = replace(WORKER, group_rank=None, group_world=None)
CASES: dict[str, tuple[Observation, str, str, str]] = {
    "worker in its group": (observe_member(), "ok", "", "rank 1 of 2 is running and has joined the group of pair, over rdma"),
    "head that generates": (observe_member(HEAD), "ok", "", "a token in 0.06 s"),
    "worker that exited with 0": (
        observe_member(container=ENDED), "down", "restart", "rank 1 of pair (glm) exited (exit code 0), while in service"),
    "worker whose engine died": (
        observe_member(replace(WORKER, failure="the process of a rank died"), ENDED),
        "down", "restart", "(exit code 0): the process of a rank died"),
    "head whose engine died": (
        observe_member(replace(HEAD, failure="the engine died"), ENDED), "down", "restart", "rank 0 of pair"),
    "killed head": (observe_member(HEAD, replace(ENDED, exit_code=137)), "down", "restart", "exit code 137"),
    "head stopped by hand": (observe_member(HEAD, ENDED), "down", "person", "finished or stopped by hand"),
    "rank stopped by a failed restart": (
        observe_member(HEAD, replace(ENDED, exit_code=137), stopping_run="20261123T1"),
        "down", "person", "rank 0 of pair (glm) exited (exit code 137), stopped by sparkwright (run 20261123T1)"),
    "head whose host was restarted": (
        observe_member(HEAD, ENDED, machine=Machine(uptime_s=10.0)), "down", "restart", "its host was restarted"),
    "head without a container": (
        observe_member(HEAD, replace(CONTAINER, status="absent")), "down", "deploy", "there is no container"),
    "rank that waits for the others": (
        observe_member(replace(UNJOINED, stage="loading"), replace(CONTAINER, started_s=NOW_S - 20)),
        "starting", "", "starting for 20 s (up to 800 s); the last stage in its log: loading"),
    "rank that never joined its group": (
        observe_member(UNJOINED), "down", "restart", "rank 1 has not joined the group of pair after 7200 s"),
    "rank of another group": (
        observe_member(replace(WORKER, group_world=4)), "down", "deploy", "it is rank 1 of 4, not 1 of 2"),
    "group of unknown size": (observe_member(replace(WORKER, world=None, group_world=4)), "ok", "", "rank 1 of 4"),
    "rank over sockets": (observe_member(replace(WORKER, transport="sockets")), "degraded", "person", "not RDMA"),
    "rank not started by sparkwright": (
        observe_member(container=replace(CONTAINER, verified=False)), "degraded", "deploy", "was not started by"),
    "unreadable log": (observe_member(replace(WORKER, error="cannot read the log")), "unknown", "", "cannot read the log"),
    "head that answers 200 and generates nothing": (
        observe_member(HEAD, server=replace(SERVER, token="none", running=0.0)),
        "wedged", "restart", f"no token within 30 s: {GONE}"),
    "head whose test request fails": (
        observe_member(HEAD, server=replace(SERVER, token="error"), error="500: EngineCore died."),
        "down", "restart", f"500: EngineCore died: {GONE}"),
    "head whose group hangs": (
        observe_member(HEAD, server=replace(SERVER, token="none", running=1.0), frozen_s=61.0),
        "stalled", "restart", f"no token for 61 s with 1 request running: {GONE}"),
    "policy that would start a rank alone": (
        observe_member(container=replace(CONTAINER, policy="always")),
        "degraded", "deploy", "it would start without the other ranks"),
}  # fmt: skip


@pytest.mark.parametrize(("observation", "state", "cure", "why"), CASES.values(), ids=CASES.keys())
def test_a_member_is_evaluated_to_a_state(observation: Observation, state: str, cure: str, why: str) -> None:
    evaluation = evaluate_observation(observation, Limits())
    assert (evaluation.state, evaluation.cure) == (state, cure), evaluation.why
    assert why in evaluation.why
