"""Running a playbook on many hosts: in batches, with one connection per host and a single stream of events."""

from __future__ import annotations

import collections
import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sparkwright import here
from sparkwright.console.events.subscriber import Subscriber
from sparkwright.console.formatters import join_names
from sparkwright.defaults import FORKS
from sparkwright.errors import Exit, Failed, Inconclusive, SparkwrightError
from sparkwright.fleet import fixes
from sparkwright.fleet.member import Member, build_run_request, close_links, convert_error
from sparkwright.fleet.rollout import PlayRollout
from sparkwright.program import rewrite_commands_in
from sparkwright.project.inventory.host import Host
from sparkwright.protocol import events
from sparkwright.protocol.events import Event, event
from sparkwright.protocol.plan import Plan
from sparkwright.runner.request import REQUEST_KINDS
from sparkwright.trust.bounds import sanitize
from sparkwright.visible import escape_invisible

#: exit codes of a check after which a host is not run: no changes, or refused. Any other failure may be due to another run on
#: the host, so that host is run
SETTLED_CODES = (Exit.OK, Exit.REFUSED)
#: events with foreign text, which is passed on as it is: files of an incident, and lines that are not events
FOREIGN_EVENTS = ("file", "raw")

Answer = TypeVar("Answer")


class Fleet:
    """Runs plans on members and passes every event to the subscribers, in the caller's thread.

    The attribute `stopped` holds the reason why the remaining hosts were not started, if any remain.

    Args:
        members: the hosts that take part.
        subscribers: receive the events; may be set after connecting has begun.
        ask_stop: called on Ctrl-C with the hosts still running; returns True to stop them at a safe point, False to leave them.
    """

    def __init__(
        self,
        members: Sequence[Member],
        subscribers: Iterable[Subscriber] = (),
        ask_stop: Callable[[str], bool] = lambda hosts: False,
    ) -> None:
        self.members = list(members)
        self.subscribers = list(subscribers)
        self.ask_stop = ask_stop
        self.stopped = ""
        self._final_events: list[Event] = []
        self._machine_locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._broken_subscribers: set[int] = set()
        self._events: queue.Queue[Event | Callable[[], None] | None] = queue.Queue()

    def connect(self) -> None:
        """Start connecting to all hosts, and return immediately."""
        for member in self.members[:FORKS]:
            member.open()

    def wait_for_connections(self) -> list[Member]:
        """Wait for the connections to all hosts. Return the members that failed, whose recaps hold the reasons."""
        self.each(self.members, lambda member: member.open().ready())
        return [member for member in self.members if member.failed]

    def begin(self, play: str, hosts: Iterable[Host]) -> list[Member]:
        """Announce a play and return its members that have not failed; none if the run was stopped."""
        taking_part = {host.name for host in hosts}
        members = [member for member in self.members if member.host.name in taking_part and not member.failed]
        if not members or self.stopped:
            return []
        self._notify(event("play_started", play=play, hosts=[member.host.name for member in members], host=""))
        return members

    def roll(
        self,
        members: Sequence[Member],
        plan_for: Callable[[Member], Plan],
        roll: PlayRollout,
        preview: Callable[[Member], Plan] | None = None,
    ) -> None:
        """Run the members' plans batch by batch. If the run stops early, `stopped` holds the reason and no further play starts.

        Args:
            roll: the batches, and the hosts that must keep serving.
            preview: returns a host's plan in check mode, for a roll that checks first.
        """
        waiting = {member.host.name: member for member in members}
        rolls = roll.policy.is_rolling(len(waiting))
        if preview is not None and roll.checks_first and len(waiting) > 1:
            waiting = self._preview_members(waiting, preview, roll, rolls=rolls)
        proved: list[str] = []
        while waiting and not self.stopped:
            names_in_batch, self.stopped = roll.next_batch(list(waiting), proved)
            batch = [waiting.pop(name) for name in names_in_batch]
            if not batch:
                return
            roll.record_batch(names_in_batch)
            if rolls or waiting:
                canary = roll.batch == 0 and roll.policy.canary > 0
                self._notify(
                    event(
                        "batch_started",
                        host="",
                        n=roll.batch + 1,
                        hosts=names_in_batch,
                        left=len(waiting),
                        canary=canary,
                    )
                )
            if roll.together:
                self._run_together(batch, plan_for)
            else:
                self._run(batch, plan_for)
            failed = _failure_reasons(batch)
            self.stopped = self.stopped or roll.policy.stop_reason(
                roll.batch, list(failed), names_in_batch, is_rolling=rolls
            )
            roll.finish_batch([name for name in names_in_batch if name not in failed], failed)
            proved = [member.host.name for member in batch if member.proved and not member.failed]

    def each(
        self,
        members: Sequence[Member],
        act: Callable[[Member], object],
        then: Callable[[Member], object] = lambda member: None,
    ) -> None:
        """Act on members in parallel. Their events reach the subscribers in this thread as they arrive.

        Args:
            then: called for each member when it is done, regardless of the outcome.
        """
        if not members:
            return
        pool = ThreadPoolExecutor(max_workers=min(FORKS, len(members)))
        for member in members:
            pool.submit(here.bind_folder(self._act_on_member), member, act, then).add_done_callback(
                lambda _: self._events.put(None)
            )
        running = len(members)
        while running:
            try:
                event = self._events.get()
                if event is None:
                    running -= 1
                elif callable(event):
                    event()
                else:
                    self._notify(event)
            except KeyboardInterrupt:
                self._handle_interrupt([member for member in members if member.recap is None])
        pool.shutdown()

    def ask(self, question: Callable[[Member], Answer]) -> dict[str, Answer]:
        """Query all members in parallel, return their answers by host name, and close the fleet.

        The recap of a member without an answer holds the reason.
        """
        answers: dict[str, Answer] = {}

        def query_one(member: Member) -> None:
            answers[member.host.name] = question(member)

        try:
            self.each(self.members, query_one)
        finally:
            self.close()
        return {member.host.name: answers[member.host.name] for member in self.members if member.host.name in answers}

    def close(self) -> None:
        """Report every host's outcome, and close all connections."""
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, dict):
                self._notify(event)
        for event in (*self._final_events, *(member.recap for member in self.members if member.recap is not None)):
            self._notify(event)
        for subscriber in self.subscribers:
            self._notify_guarded(subscriber, subscriber.close)
        close_links(self.members)

    def interrupt(self) -> None:
        """Act like Ctrl-C, once and from any thread: `ask_stop` decides whether the runs are stopped or left running."""
        self._events.put(_raise_interrupt)

    def errors(self) -> dict[str, SparkwrightError]:
        """Return the errors of members without an answer, by host name."""
        return {member.host.name: events.build_recap_error(member.recap) for member in self.members if member.failed}

    def exit_codes(self) -> list[int]:
        """Return each member's exit code; 0 for a member without a recap, where nothing went wrong."""
        return [member.recap["exit"] if member.recap else int(Exit.OK) for member in self.members]

    def add_note(self, member: Member, text: str, *, detail: bool = False, once: bool = False) -> None:
        """Emit a note about a host, but not twice, since a host that is checked first is planned for twice.

        Args:
            detail: True if the note is only of interest to someone who reads task by task.
            once: do not repeat the note for other hosts.
        """
        if any(text in other.shown_notes for other in (self.members if once else [member])):
            return
        member.shown_notes.add(text)
        self._events.put(event("note", task="", host=member.host.name, text=text, detail=detail))

    def emit_event(self, event: Event) -> None:
        """Send an event to the subscribers, from any thread."""
        self._events.put(event)

    def emit_last_event(self, event: Event) -> None:
        """Send an event to the subscribers at the end, just before the recaps."""
        self._final_events.append(event)

    def request(
        self, member: Member, header: dict[str, Any], *, counted: bool = True, progress_only: bool = False
    ) -> list[Event]:
        """Send a request over a member's link and return its events, which also go to the subscribers.

        Runs on servers of the same machine are run one at a time.

        Args:
            counted: include the recap in the host's outcome; False for a side request.
            progress_only: pass on only the progress events.

        Raises:
            Failed: the answer must end with a recap but does not.
        """
        if header["verb"] != "run":
            return self._exchange(member, header, counted=counted, progress_only=progress_only)
        with self._machine_locks[member.host.machine] if member.host.on else contextlib.nullcontext():
            member.run_id = header["plan"]["run_id"]
            return self._exchange(member, header, counted=counted, progress_only=progress_only)

    def _exchange(self, member: Member, header: dict[str, Any], *, counted: bool, progress_only: bool) -> list[Event]:
        events_seen = []
        for row in member.request(header):
            # name the commands as they are typed here, and for this host, but not in text that the host only passes on
            row = {
                **(
                    row
                    if row["event"] in FOREIGN_EVENTS
                    else rewrite_commands_in(fixes.add_host_to_event(row, member.host))
                ),
                "host": member.host.name,
            }
            events_seen.append(row)
            if progress_only:
                if row["event"] == "progress":
                    self._events.put(row)
            elif counted or row["event"] != "recap":
                self._record_event(member, row)
        if REQUEST_KINDS[header["verb"]].recap and not any(row["event"] == "recap" for row in events_seen):
            raise Failed("the host did not report a result.", where=member.host.name)
        return events_seen

    def _run(self, batch: Sequence[Member], plan_for: Callable[[Member], Plan]) -> None:
        self.each(
            batch,
            lambda member: self.request(member, build_run_request(member, plan_for(member))),
            then=self._report_finished,
        )

    def _run_together(self, batch: Sequence[Member], plan_for: Callable[[Member], Plan]) -> None:
        """Run the plans of a cluster's members.

        All plans are made before the first is sent, because a run would wait in vain for a member without a plan.
        """
        plans: dict[str, Plan] = {}

        def plan(member: Member) -> None:
            plans[member.host.name] = plan_for(member)

        self.each(batch, plan)
        unplanned = [member for member in batch if member.host.name not in plans]
        if not unplanned:
            self._run(batch, lambda member: plans[member.host.name])
            return
        for member in unplanned:
            self._report_finished(member)
        if len(unplanned) < len(batch):
            self.stopped = (
                f"there is no plan for {join_names([item.host.name for item in unplanned])}, so nothing was started"
            )

    def _preview_members(
        self, waiting: dict[str, Member], preview: Callable[[Member], Plan], roll: PlayRollout, *, rolls: bool
    ) -> dict[str, Member]:
        """Check all hosts in parallel before any is changed, and return those that need the play.

        Hosts without changes are skipped, and hosts that would be refused are marked as failed.
        """
        roll.record_batch([])
        self._notify(event("looking", host="", hosts=list(waiting)))
        settled: dict[str, Member] = {}

        def check(member: Member) -> None:
            events_seen = self.request(member, {"verb": "run", "plan": preview(member).to_json()}, progress_only=True)
            if events_seen and events_seen[-1]["event"] == "recap" and events_seen[-1]["exit"] in SETTLED_CODES:
                for row in events_seen:
                    self._record_event(member, row)

        def then(member: Member) -> None:
            if member.recap is before[member.host.name]:
                self._events.put(event("waiting", host=member.host.name))
                return
            settled[member.host.name] = member
            self._report_finished(member)

        before = {name: member.recap for name, member in waiting.items()}
        self.each(list(waiting.values()), check, then)
        failed = _failure_reasons(settled.values())
        self.stopped = roll.policy.precheck_stop_reason(list(failed), list(waiting), is_rolling=rolls)
        roll.record_outcomes([name for name in settled if name not in failed], failed)
        return {name: member for name, member in waiting.items() if name not in settled}

    def _report_finished(self, member: Member) -> None:
        recap = {key: value for key, value in (member.recap or {}).items() if key not in ("event", "time")}
        self._events.put(event("host_finished", **{"host": member.host.name, **recap}))

    def _act_on_member(self, member: Member, act: Callable[[Member], object], then: Callable[[Member], object]) -> None:
        try:
            act(member)
        except Exception as error:
            self._record_event(member, events.build_error_recap(member.host.name, convert_error(error)))
        then(member)

    def _record_event(self, member: Member, event: Event) -> None:
        """Record what the next play and the final report need. The recap over all plays is sent once, at the end."""
        if event["event"] == "recap":
            member.recap = events.merge_recaps(member.recap, event)
            return
        if event["event"] == "task_finished":
            member.learn(event)
        self._events.put(event)

    def _handle_interrupt(self, running: Sequence[Member]) -> None:
        """Handle Ctrl-C: request a stop, or leave the runs, which continue on their own. Questions end with the link."""
        hosts = ",".join(member.host.name for member in running if member.run_id)
        if hosts and self.ask_stop(hosts):
            for member in (member for member in running if member.run_id):
                threading.Thread(target=here.bind_folder(self._stop), args=(member,), daemon=True).start()
            return
        for member in running:
            member.open().close()
        if not hosts:
            raise Inconclusive("stopped by Ctrl-C.")
        raise Inconclusive(f"still running on {hosts}.", fix=f"Follow it with `invoke attach --host {hosts}`.")

    def _stop(self, member: Member) -> None:
        """Ask a member to stop the run that this command started there, and no other run."""
        collections.deque(member.request({"verb": "stop", "run": member.run_id}, secrets={}), maxlen=0)

    def _notify(self, event: Event) -> None:
        # a host's text has been cleaned; names of plays and reasons come from files and libraries
        event = rewrite_commands_in(sanitize(event))
        for subscriber in self.subscribers:
            self._notify_guarded(subscriber, subscriber.on, event)

    def _notify_guarded(self, subscriber: Subscriber, act: Callable[..., object], *arguments: Event) -> None:
        """Call a subscriber. An error is shown once and affects neither the other subscribers nor the hosts."""
        try:
            act(*arguments)
        except BrokenPipeError:
            raise  # the reader of standard output is gone
        except Exception as error:
            if id(subscriber) not in self._broken_subscribers:
                self._broken_subscribers.add(id(subscriber))
                message = f"{type(subscriber).__name__}: {convert_error(error)} The run continues."
                print(escape_invisible(message), file=sys.stderr)


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _failure_reasons(members: Iterable[Member]) -> dict[str, str]:
    """Return the reasons why members failed, by host name."""
    return {member.host.name: str((member.recap or {}).get("msg", "")) for member in members if member.failed}
