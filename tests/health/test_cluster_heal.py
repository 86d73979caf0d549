"""The vote of a cluster's members on a restart, over real connections on 127.0.0.1 and without Docker."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright import host_side
from sparkwright.health import cluster_heal, heal, store
from sparkwright.health.record import Rank, Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.records import restart_plans, server_keys, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import TOKEN_SECRET, Cluster
from sparkwright.protocol.container import CLUSTER_LABEL, RANK_LABEL
from sparkwright.protocol.plan import Plan, Task
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor
from tests.modules.context import RecordingContext
from tests.remote.sshd import free_port
from tests.runner.cluster.members import SECRET

HOSTS = ("spark1", "spark2")
NOW_S = 100_000.0


class Member:
    """A host with the state of a deploy and of `health.install --heal restart`."""

    def __init__(self, home: Path, rank: int, port: int, *, every_s: float = 30) -> None:
        home.mkdir()
        self.context = RecordingContext(home)
        self.settings = Settings(HOSTS[rank], every_s, heal="restart")
        self.busy = ""
        labels = {CLUSTER_LABEL: "pair", RANK_LABEL: str(rank)}
        spec = {"name": "glm", "image": "vllm@sha256:1", "labels": labels}
        verified_states.save_verified(self.state, VerifiedState.from_json({"spec": spec}))
        grant = Task("t1", "Grant", "grant_restart", {"spec": spec, "model": {}})
        cluster = Cluster("pair", rank, HOSTS, "127.0.0.1", port)
        plan = Plan("restart", HOSTS[rank], "Restart", (grant,), cluster=cluster).to_json()
        restart_plans.save(self.state, {"runtime": host_side.content_hash(), "plan": plan}, Redactor())
        server_keys.save_heal_token(self.state, Secret(SECRET))
        good = Record(NOW_S, "ok", "ok", NOW_S, rank=Rank("pair", rank, 2))
        wedged = replace(good, seen="wedged", state="wedged", cure="restart", why="no token")
        self.record = wedged if rank == 0 else good

    @property
    def state(self) -> StateFolder:
        return self.context.state

    def check(self) -> heal.Decision:
        """Run the check and return the decision. Only a member whose record recommends it proposes a restart."""
        own = heal.decide_from_saved_plan(self.state) if self.record.cure == "restart" else heal.Decision()
        return cluster_heal.vote_on_decision(self.context, self.settings, self.record, own, lambda: self.busy)

    def begin(self) -> Future[heal.Decision]:
        """Run the check in a thread."""
        pending = Future[heal.Decision]()
        threading.Thread(target=lambda: pending.set_result(self.check())).start()
        return pending


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Member, Member]:
    port = free_port()
    head, worker = (Member(tmp_path / name, rank, port) for rank, name in enumerate(HOSTS))
    return head, worker


def run_both_checks(head: Member, worker: Member) -> tuple[heal.Decision, heal.Decision]:
    """Return the decisions of the head's check and of the worker's check that joined it."""
    heads_check, decision = head.begin(), heal.Decision()
    while decision == heal.Decision() and not heads_check.done():
        decision = worker.check()
    return heads_check.result(60), decision


def test_all_members_restart_with_the_same_token_and_reason(pair: tuple[Member, Member]) -> None:
    head, worker = pair
    worker.record = replace(worker.record, seen="down", why="rank 1 of pair exited")
    decisions = run_both_checks(head, worker)
    plans, tokens = [item.plan for item in decisions], {item.secrets[TOKEN_SECRET].reveal() for item in decisions}
    assert [plan.cluster.rank for plan in plans if plan and plan.cluster] == [0, 1]
    assert {item.restart_reason for item in decisions} == {"spark1: no token; spark2: rank 1 of pair exited"}
    assert len(tokens) == 1 and SECRET not in tokens
    again, _ = run_both_checks(head, worker)
    assert again.plan is not None and again.secrets[TOKEN_SECRET].reveal() not in tokens  # another for each restart
    assert SECRET not in str(head.context.events) + str(worker.context.events)


def test_only_the_user_can_read_the_secret(pair: tuple[Member, Member]) -> None:
    file = pair[0].state.path / f"{server_keys.HEAL_TOKEN_RECORD}.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_worker_never_starts_a_restart(pair: tuple[Member, Member]) -> None:
    """Even if its rank has exited, it only joins the head's vote."""
    _, worker = pair
    worker.record = replace(worker.record, seen="down", state="down", cure="restart")
    past = CheckHistory(cures=5)
    decided = heal.decide_restart(worker.record, past, worker.settings, worker.state, NOW_S)
    assert decided.plan is None and "the head of its cluster decides" in decided.message
    assert cluster_heal.vote_on_decision(worker.context, worker.settings, worker.record, decided, lambda: "") is decided


def test_a_missing_member_prevents_the_restart_and_is_named(tmp_path: Path) -> None:
    head = Member(tmp_path / "spark1", 0, free_port(), every_s=0.5)
    decision = head.check()
    assert (decision.plan, decision.message) == (None, "not restarted: spark2 (rank 1) did not join within 1 s")


def test_a_member_with_another_secret_cannot_join(tmp_path: Path) -> None:
    port = free_port()
    head, worker = (Member(tmp_path / name, rank, port, every_s=1) for rank, name in enumerate(HOSTS))
    server_keys.save_heal_token(worker.state, Secret("f" * 64))
    heads, workers = run_both_checks(head, worker)
    assert (heads.plan, workers.plan) == (None, None)
    assert "spark2 (rank 1) did not join" in heads.message
    assert any("another token" in str(item) for item in head.context.events)


def test_a_member_that_declines_reports_its_reason(pair: tuple[Member, Member]) -> None:
    head, worker = pair
    worker.record = replace(worker.record, drift=("image",))
    heads, workers = run_both_checks(head, worker)
    assert (heads.plan, workers.plan) == (None, None)
    assert "spark2 (rank 1) failed: the running server differs from the last good state" in heads.message


def test_a_run_on_the_heads_host_takes_precedence(pair: tuple[Member, Member]) -> None:
    head, _ = pair
    pending = head.begin()
    head.busy = "deploy by ops"
    decision = pending.result(60)
    assert (decision.plan, decision.message) == (None, "not restarted: deploy by ops")


def test_without_a_secret_the_message_names_the_command_that_installs_one(pair: tuple[Member, Member]) -> None:
    head, _ = pair
    head.state.remove(server_keys.HEAL_TOKEN_RECORD)
    assert (
        "`invoke health.install --host pair --heal restart` (with your other options) installs one"
        in head.check().message
    )


def test_only_one_check_of_a_host_waits_for_the_other_members(pair: tuple[Member, Member]) -> None:
    """Cron starts a check even if the previous one is still running."""
    head, worker = pair
    with store.try_heal_lock(head.state) as heads_lock, store.try_heal_lock(worker.state) as workers_lock:
        assert heads_lock and workers_lock
        assert "an earlier check is waiting" in head.check().message
        assert worker.check() == heal.Decision()
