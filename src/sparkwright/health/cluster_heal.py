"""Heal a cluster from its own hosts: members vote during their health checks, then each runs its own restart plan.

No server is changed before the vote. Only the head's check opens a vote, and only the other members' checks join it, so two
members can't start conflicting restarts. A waiting check holds no lock: a deploy that starts in the meantime locks the host and
ends the vote.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.health import store
from sparkwright.health.heal import NOT_RESTARTED, Decision, decide_from_saved_plan
from sparkwright.health.judging.questions import POWER_CYCLE_FIX
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.cluster import wire
from sparkwright.host.cluster.channel import Channel
from sparkwright.host.cluster.coordinator import Coordinator
from sparkwright.host.module import Context
from sparkwright.host.records import restart_plans, server_keys
from sparkwright.protocol.cluster import TOKEN_SECRET, Cluster
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line

#: number of check intervals that the head waits: enough for each member to check at least once
MAX_WAIT_INTERVALS = 2
#: how long the members' runs wait for each other after a vote, in seconds
HEAL_JOIN_TIMEOUT_S = 60.0
AGREE_TIMEOUT_S = 30.0
MAX_REASON_CHARS = 300


@dataclass(frozen=True)
class HealVote:
    """A member's side of a cluster's vote on a restart."""

    context: Context
    settings: Settings
    cluster: Cluster
    record: Record
    #: returns the run in progress on this host, which has priority; empty if there is none
    describe_run: Callable[[], str]

    def open_vote(self, decision: Decision) -> Decision:
        """Open the vote as the head, and wait for the other members' checks. Return the joint decision."""
        with ExitStack() as exit_stack:
            if not exit_stack.enter_context(store.try_heal_lock(self.context.state)):
                return Decision(message=f"{NOT_RESTARTED}an earlier check is waiting for the other members")
            if not self._vote_token:
                fix = f"`invoke health.install --host {self.cluster.name} --heal restart` (with your other options) installs one"
                return Decision(message=f"{NOT_RESTARTED}there is no secret for the members' vote: {fix}")
            try:
                coordinator = Coordinator(self._vote_cluster, self._vote_token, self.context.note)
                exit_stack.callback(coordinator.close)
                return self._join_members(self._open_channel(exit_stack), decision)
            except SparkwrightError as error:
                return Decision(message=f"{NOT_RESTARTED}{self.describe_run() or error.message.rstrip('.')}")

    def join_vote(self) -> Decision:
        """Join the vote as a worker. Return an empty decision if the head has not opened a vote."""
        with ExitStack() as exit_stack:
            if not exit_stack.enter_context(store.try_heal_lock(self.context.state)) or not self._vote_token:
                return Decision()
            channel = self._open_channel(exit_stack)
            try:
                channel.connect(0)
            except SparkwrightError:
                return Decision()
            try:
                decision = self._decide_as_worker()
                if decision.plan is None:
                    channel.decline_to_join(decision.message.removeprefix(NOT_RESTARTED))
                    return decision
                return self._join_members(channel, decision)
            except SparkwrightError as error:
                return Decision(message=f"{NOT_RESTARTED}{self.describe_run() or error.message.rstrip('.')}")

    @property
    def _vote_token(self) -> Secret:
        stored_token = server_keys.load_heal_token(self.context.state)
        return wire.derive_token(stored_token, "meeting") if stored_token else stored_token

    def _decide_as_worker(self) -> Decision:
        if self.record.cure == "power":
            return Decision(message=f"{NOT_RESTARTED}{POWER_CYCLE_FIX}")
        if self.record.drift:
            return Decision(message=f"{NOT_RESTARTED}the running server differs from the last good state")
        return decide_from_saved_plan(self.context.state)

    @property
    def _vote_cluster(self) -> Cluster:
        """The cluster, with the time limit that a vote sets for joining."""
        return replace(self.cluster, join_s=MAX_WAIT_INTERVALS * self.settings.every_s)

    def _open_channel(self, exit_stack: ExitStack) -> Channel:
        redactor = Redactor(secret.reveal() for secret in self.context.secrets.values())
        should_stop = lambda: bool(self.describe_run())  # noqa: E731
        channel = Channel(
            self._vote_cluster, self._vote_token, note=self.context.note, redactor=redactor, should_stop=should_stop
        )
        exit_stack.callback(channel.close)
        return channel

    def _join_members(self, channel: Channel, decision: Decision) -> Decision:
        """Wait for all members, and return the decision with this member's plan and a token for the restart."""
        assert decision.plan is not None
        channel.join()
        own_report = {"why": "" if self.record.seen == "ok" else self.record.why}
        own_report |= {} if self.cluster.rank else {"restart": os.urandom(32).hex()}
        reports = channel.arrive("met", own_report, AGREE_TIMEOUT_S)
        restart_id = str(reports.get(self.cluster.members[0], {}).get("restart", ""))
        if not server_keys.HEAL_TOKEN_PATTERN.fullmatch(restart_id):
            raise Failed(f"{self.cluster.format_member(0)} did not send a valid ID for the restart.")
        token = wire.derive_token(server_keys.load_heal_token(self.context.state), f"restart {restart_id}")
        reasons = {
            host: one_line(str(reports.get(host, {}).get("why", "")), max_chars=MAX_REASON_CHARS)
            for host in self.cluster.members
        }
        return Decision(
            replace(decision.plan, cluster=replace(self.cluster, join_s=HEAL_JOIN_TIMEOUT_S)),
            {**decision.secrets, TOKEN_SECRET: token},
            restart_reason="; ".join(f"{host}: {reason}" for host, reason in reasons.items() if reason),
        )


def vote_on_decision(
    context: Context, settings: Settings, record: Record, decision: Decision, describe_run: Callable[[], str]
) -> Decision:
    """Return the decision after a vote of the cluster, or the given decision if there is no vote."""
    if not record.rank.cluster or settings.heal != "restart" or record.busy:
        return decision
    cluster = restart_plans.read_cluster(context.state)
    if cluster is None or cluster.rank != record.rank.rank:
        message = f"{NOT_RESTARTED}the restart plan is not for this cluster"
        return Decision(message=message) if decision.plan else decision
    vote = HealVote(context, settings, cluster, record, describe_run)
    if cluster.rank == 0:
        return vote.open_vote(decision) if decision.plan is not None else decision
    joint_decision = vote.join_vote()
    return joint_decision if joint_decision.plan is not None or joint_decision.message else decision
