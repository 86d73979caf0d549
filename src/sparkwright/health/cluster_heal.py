"""Healing a cluster without a laptop: the members' checks vote, then each member runs its own restart plan.

Nothing is touched before the vote. Only the head's check opens a vote and only the others' checks join it, so two members can't
start conflicting restarts. A waiting check holds no lock: a deploy that starts in the meantime takes the host and ends the vote.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.health import store
from sparkwright.health.heal import NOT, Decision, by_plan
from sparkwright.health.judging.questions import POWER
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.cluster import wire
from sparkwright.host.cluster.channel import Channel
from sparkwright.host.cluster.coordinator import Coordinator
from sparkwright.host.module import Context
from sparkwright.host.records import restart_plans, server_keys
from sparkwright.protocol.cluster import TOKEN, Cluster
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor
from sparkwright.visible import one_line

#: the number of check intervals that the head waits, in which each member checks at least once
INTERVALS = 2
#: how long the runs of members that have agreed wait for each other, in seconds
RUNS_S = 60.0
AGREE_S = 30.0
WHY_CHARACTERS = 300


@dataclass(frozen=True)
class HealVote:
    """One member's part in a cluster's vote on a restart."""

    context: Context
    settings: Settings
    cluster: Cluster
    record: Record
    #: describes the run in progress on this host, which has priority; empty for none
    busy: Callable[[], str]

    def call(self, decision: Decision) -> Decision:
        """Open the vote as the head and wait for the others' checks. Return the common decision, or why there is none."""
        with ExitStack() as ends:
            if not ends.enter_context(store.healing(self.context.state)):
                return Decision(message=f"{NOT}an earlier check is waiting for the other members")
            if not self._token:
                fix = f"`invoke health.install --host {self.cluster.name} --heal restart` installs one"
                return Decision(message=f"{NOT}there is no secret for the vote of the members: {fix}")
            try:
                meant = replace(self.cluster, join_s=INTERVALS * self.settings.every_s)
                coordinator = Coordinator(meant, self._token, self.context.note)
                ends.callback(coordinator.close)
                return self._met(self._channel(meant, ends), decision)
            except SparkwrightError as error:
                return Decision(message=f"{NOT}{self.busy() or error.message.rstrip('.')}")

    def answer(self) -> Decision:
        """Join the vote as a worker. The decision has neither plan nor message if the head's check is not waiting."""
        with ExitStack() as ends:
            if not ends.enter_context(store.healing(self.context.state)) or not self._token:
                return Decision()
            channel = self._channel(replace(self.cluster, join_s=INTERVALS * self.settings.every_s), ends)
            try:
                channel.connect(0)
            except SparkwrightError:
                return Decision()
            try:
                decision = self._own()
                if decision.plan is None:
                    channel.cannot_come(decision.message.removeprefix(NOT))
                    return decision
                return self._met(channel, decision)
            except SparkwrightError as error:
                return Decision(message=f"{NOT}{self.busy() or error.message.rstrip('.')}")

    @property
    def _token(self) -> Secret:
        found = server_keys.heal_tokens_kept(self.context.state)
        return wire.derived(found, "meeting") if found else found

    def _own(self) -> Decision:
        """Return a worker's part in the restart, or the reason why it can't take part."""
        if self.record.cure == "power":
            return Decision(message=f"{NOT}{POWER}")
        if self.record.drift:
            return Decision(message=f"{NOT}the running server is not the last good state")
        return by_plan(self.context.state)

    def _channel(self, meant: Cluster, ends: ExitStack) -> Channel:
        hidden = Redactor(secret.reveal() for secret in self.context.secrets.values())
        stopped = lambda: bool(self.busy())  # noqa: E731
        channel = Channel(meant, self._token, note=self.context.note, hidden=hidden, stopped=stopped)
        ends.callback(channel.close)
        return channel

    def _met(self, channel: Channel, decision: Decision) -> Decision:
        """Wait for all members, and return the plan for this member's part, with a token for this restart."""
        assert decision.plan is not None
        channel.join()
        own = {"why": "" if self.record.seen == "ok" else self.record.why}
        own |= {} if self.cluster.rank else {"restart": os.urandom(32).hex()}
        shared = channel.arrive("met", own, AGREE_S)
        name = str(_shared_by(shared, self.cluster.members[0], "restart"))
        if not server_keys.HEAL_TOKENS_DIGITS.fullmatch(name):
            raise Failed(f"{self.cluster.named(0)} gave the restart no name.")
        token = wire.derived(server_keys.heal_tokens_kept(self.context.state), f"restart {name}")
        reasons = {
            host: one_line(str(_shared_by(shared, host, "why")), at_most=WHY_CHARACTERS)
            for host in self.cluster.members
        }
        return Decision(
            replace(decision.plan, cluster=replace(self.cluster, join_s=RUNS_S)),
            {**decision.secrets, TOKEN: token},
            why="; ".join(f"{host}: {why}" for host, why in reasons.items() if why),
        )


def agreed(
    context: Context, settings: Settings, record: Record, decision: Decision, busy: Callable[[], str]
) -> Decision:
    """Return a check's decision after the vote of its cluster; unchanged for a server that is not in a cluster."""
    if not record.rank.cluster or settings.heal != "restart" or record.busy:
        return decision
    cluster = restart_plans.cluster_of(context.state)
    if cluster is None or cluster.rank != record.rank.rank:
        return Decision(message=f"{NOT}the restart plan is not for this cluster") if decision.plan else decision
    meeting = HealVote(context, settings, cluster, record, busy)
    if cluster.rank == 0:
        return meeting.call(decision) if decision.plan is not None else decision
    found = meeting.answer()
    return found if found.plan is not None or found.message else decision


def _shared_by(shared: Mapping[str, Any], host: str, name: str) -> Any:
    return shared.get(host, {}).get(name, "")
