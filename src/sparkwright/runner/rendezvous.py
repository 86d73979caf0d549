"""The connection between the runs on a cluster's members: the head's listener, and each member's channel to it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.runs.journal import Journal
from sparkwright.protocol.cluster import TOKEN_SECRET, Cluster, describe_clock_offset
from sparkwright.protocol.plan import Plan
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.host.cluster.channel import Channel

T = TypeVar("T")
_TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Rendezvous:
    """The connections of one run. They do nothing in check mode or for a plan without a cluster."""

    plan: Plan
    secrets: Mapping[str, Secret]
    note: Callable[[str], None]
    journal: Journal

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, if there are members to wait for."""
        return None if self.plan.check else self.plan.cluster

    @property
    def lock_wait_s(self) -> float:
        """Time limit for the host's lock, seconds; at most the time that the other members wait for this run."""
        return min(self.plan.wait_s, self.cluster.join_s) if self.cluster is not None else self.plan.wait_s

    @contextlib.contextmanager
    def hold_or_report(self, manager: AbstractContextManager[T]) -> Iterator[T]:
        """Hold a context manager, such as the host's lock. If entering it fails, report the reason to the other members."""
        with contextlib.ExitStack() as stack:
            try:
                value = stack.enter_context(manager)
            except SparkwrightError as error:
                if self.cluster is not None:
                    with contextlib.suppress(SparkwrightError):
                        self._report_refusal(self.cluster, error.message)
                raise
            yield value

    @contextlib.contextmanager
    def channel(self) -> Iterator[Channel | None]:
        """Yield the channel once the runs of all members have joined, or None if there is no cluster.

        At the end of the block the other members are always informed, and the head waits until they have left. Raises the errors
        of `Channel.join` and `Coordinator`.
        """
        if self.cluster is None:
            yield None
            return
        from sparkwright.host.cluster.channel import DECLINE_TIMEOUT_S
        from sparkwright.host.cluster.coordinator import Coordinator

        with contextlib.ExitStack() as cleanup:
            channel = self._open_channel(self.cluster)
            if self.cluster.rank == 0:
                coordinator = Coordinator(self.cluster, self._token, self.note)
                cleanup.callback(coordinator.close)
            cleanup.callback(channel.close)
            try:
                channel.join()
            except SparkwrightError as error:
                channel.fail("", error.message, refused=isinstance(error, Refused))
                if self.cluster.rank == 0:
                    coordinator.wait_for_others(min(self.cluster.join_s, DECLINE_TIMEOUT_S))
                raise
            if offset_text := describe_clock_offset(channel.clock_offset_s, self.cluster.format_member(0)):
                self.note(
                    f"the clock is {offset_text}: synchronize it, so that logs and histories of all members match."
                )
            try:
                yield channel
            except BaseException as error:
                channel.fail("", f"internal error in the runner: {type(error).__name__}")
                raise

    def _report_refusal(self, cluster: Cluster, reason: str) -> None:
        from sparkwright.host.cluster.channel import DECLINE_TIMEOUT_S
        from sparkwright.host.cluster.coordinator import Coordinator

        with contextlib.ExitStack() as cleanup:
            channel = self._open_channel(cluster)
            cleanup.callback(channel.close)
            if cluster.rank == 0:
                coordinator = Coordinator(cluster, self._token, self.note)
                cleanup.callback(coordinator.close)
            channel.decline_to_join(reason)
            if cluster.rank == 0:
                coordinator.wait_for_others(min(cluster.join_s, DECLINE_TIMEOUT_S))

    def _open_channel(self, cluster: Cluster) -> Channel:
        from sparkwright.host.cluster.channel import Channel

        return Channel(
            cluster,
            self._token,
            note=self.note,
            redactor=self.journal.redactor,
            should_stop=self.journal.stop_requested,
        )

    @property
    def _token(self) -> Secret:
        """The deploy's token. Raises Refused if it is invalid."""
        token = self.secrets.get(TOKEN_SECRET, Secret(""))
        if not _TOKEN_PATTERN.fullmatch(token.reveal()):
            raise Refused(f"invalid request: the secret {TOKEN_SECRET} is not 64 hexadecimal digits.")
        return token
