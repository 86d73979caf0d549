"""Run plans and requests on many hosts, with one connection per host and a single stream of events."""

from __future__ import annotations

import collections
import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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

#: exit codes of a check after which the play is not run on a host: no changes, or refused. After other failures it is run,
#: because they may be due to another run on the host
FINISHED_EXIT_CODES = (Exit.OK, Exit.REFUSED)
#: events with text from other programs, in which commands are not rewritten: files of an incident, and lines that are not
#: events
FOREIGN_EVENT_KINDS = ("file", "raw")

Answer = TypeVar("Answer")


class Fleet:
    """Runs plans on members and passes every event to the subscribers, in the caller's thread.

    Args:
        subscribers: receive the events; may be replaced before the first event.
        ask_stop: called on Ctrl-C with the names of the hosts that are still running, and a function that returns False when
            none of them is any more. It returns True to stop the runs at a safe point, and False to leave them running.
    """

    def __init__(
        self,
        members: Sequence[Member],
        subscribers: Iterable[Subscriber] = (),
        ask_stop: Callable[[str, Callable[[], bool]], bool] = lambda hosts, is_running: False,
    ) -> None:
        self.members = list(members)
        self.subscribers = list(subscribers)
        self.ask_stop = ask_stop
        #: reason why the remaining hosts were not started; empty if all were started
        self.stop_reason = ""
        #: True after Ctrl-C: no more runs start
        self._is_interrupted = False
        self._final_events: list[Event] = []
        self._machine_locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        #: protects the next two sets: names of hosts with a run in progress, and of those whose run may not start any more
        self._runs_mutex = threading.Lock()
        self._running_hosts: set[str] = set()
        self._withdrawn_hosts: set[str] = set()
        self._broken_subscribers: set[int] = set()
        self._has_lost_output = False
        #: events for the subscribers, functions to call in the caller's thread, and None for each member that is done
        self._events: queue.Queue[Event | Callable[[], None] | None] = queue.Queue()

    def connect(self) -> None:
        """Start connecting to the first hosts, as many as are used in parallel, and return immediately."""
        for member in self.members[:FORKS]:
            member.open()

    def wait_for_connections(self) -> list[Member]:
        """Wait for the connections to all hosts, and return the members that failed. Their recaps contain the reasons."""
        self.run_parallel(self.members, lambda member: member.open().wait_until_connected())
        return [member for member in self.members if member.failed]

    def begin(self, play: str, hosts: Iterable[Host]) -> list[Member]:
        """Announce a play and return its members that have not failed; empty if the run was stopped."""
        names = {host.name for host in hosts}
        members = [member for member in self.members if member.host.name in names and not member.failed]
        if not members or self.stop_reason:
            return []
        self._notify(event("play_started", play=play, hosts=[member.host.name for member in members], host=""))
        return members

    def roll(
        self,
        members: Sequence[Member],
        plan_for: Callable[[Member], Plan],
        rollout: PlayRollout,
        preview: Callable[[Member], Plan] | None = None,
    ) -> None:
        """Run the members' plans batch by batch. If the run stops early, `stop_reason` is set and no more plays start.

        Args:
            rollout: the batches, and the hosts that must keep serving.
            preview: returns a host's plan in check mode; None to run without a check first.
        """
        waiting_members = {member.host.name: member for member in members}
        is_rolling = rollout.policy.is_rolling(len(waiting_members))
        is_limited = len(waiting_members) > 1 or rollout.guard is not None
        if preview is not None and rollout.checks_first and is_limited:
            waiting_members = self._preview_members(waiting_members, preview, rollout, is_rolling=is_rolling)
        verified_hosts: list[str] = []
        while waiting_members and not self.stop_reason:
            if self._is_interrupted:
                raise Inconclusive(
                    f"stopped by Ctrl-C before {join_names(list(waiting_members))}.",
                    fix="The other hosts' runs have ended.",
                )
            names, self.stop_reason = rollout.next_batch(list(waiting_members), verified_hosts)
            batch = [waiting_members.pop(name) for name in names]
            if not batch:
                return
            rollout.record_batch(names)
            if is_rolling or waiting_members:
                is_canary = rollout.finished_batch_count == 0 and rollout.policy.canary > 0
                number, left = rollout.finished_batch_count + 1, len(waiting_members)
                self._notify(event("batch_started", host="", n=number, hosts=names, left=left, canary=is_canary))
            if rollout.all_or_none:
                self._run_together(batch, plan_for)
            else:
                self._run(batch, plan_for)
            failed = _failure_reasons(batch)
            self.stop_reason = self.stop_reason or rollout.policy.stop_reason(
                rollout.finished_batch_count,
                list(failed),
                names,
                is_rolling=is_rolling,
                inconclusive=[member.host.name for member in batch if member.exit_code is Exit.INCONCLUSIVE],
            )
            rollout.finish_batch([name for name in names if name not in failed], failed)
            verified_hosts = [member.host.name for member in batch if member.is_verified and not member.failed]

    def run_parallel(
        self,
        members: Sequence[Member],
        action: Callable[[Member], object],
        after_each: Callable[[Member], object] = lambda member: None,
    ) -> None:
        """Call `action` for the members in parallel, and pass their events to the subscribers in this thread as they arrive.

        An exception becomes the member's recap.

        Args:
            after_each: called for each member after `action`, even if `action` failed.
        """
        if not members:
            return
        pool = ThreadPoolExecutor(max_workers=min(FORKS, len(members)))
        futures = {}
        for member in members:
            futures[member.host.name] = pool.submit(here.bind_folder(self._act_on_member), member, action, after_each)
            futures[member.host.name].add_done_callback(lambda _: self._events.put(None))
        running_count = len(members)
        try:
            while running_count:
                try:
                    event = self._events.get()
                    if event is None:
                        running_count -= 1
                    elif callable(event):
                        event()
                    else:
                        self._notify(event)
                except KeyboardInterrupt:
                    self._handle_interrupt(
                        lambda: [member for member in members if not futures[member.host.name].done()]
                    )
            self._withdrawn_hosts.clear()
        finally:
            pool.shutdown(wait=not running_count, cancel_futures=True)

    def query_all(self, query: Callable[[Member], Answer]) -> dict[str, Answer]:
        """Query all members in parallel, return their answers by host name, and close the fleet.

        Members that failed have no answer; see `errors`.
        """
        answers: dict[str, Answer] = {}

        def store_answer(member: Member) -> None:
            answers[member.host.name] = query(member)

        try:
            self.run_parallel(self.members, store_answer)
        finally:
            self.close()
        return {member.host.name: answers[member.host.name] for member in self.members if member.host.name in answers}

    def close(self) -> None:
        """Pass the last events and every member's recap to the subscribers, and close the connections."""
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
        """Interrupt the fleet as Ctrl-C does. This may be called from any thread."""
        self._events.put(_raise_interrupt)

    def errors(self) -> dict[str, SparkwrightError]:
        """Return the errors of members that failed, by host name."""
        return {member.host.name: events.build_recap_error(member.recap) for member in self.members if member.failed}

    def exit_codes(self) -> list[int]:
        """Return the exit code of each member, 0 for one without a recap, and that of incomplete output."""
        codes = [member.recap["exit"] if member.recap else int(Exit.OK) for member in self.members]
        return [*codes, *self.output_codes()]

    def output_codes(self) -> list[int]:
        """Return the exit code "failed" if events could not be written, as on a full disk; otherwise nothing."""
        return [int(Exit.FAILED)] if self._has_lost_output else []

    def add_note(self, member: Member, text: str, *, detail: bool = False, one_host_only: bool = False) -> None:
        """Emit a note about a host, unless it was emitted before: a host that is checked first is planned twice.

        Args:
            detail: whether to show the note only if all tasks are shown.
            one_host_only: whether to emit the note for only one host.
        """
        if any(text in other.shown_notes for other in (self.members if one_host_only else [member])):
            return
        member.shown_notes.add(text)
        self._events.put(event("note", task="", host=member.host.name, text=text, detail=detail))

    def emit_event(self, event: Event) -> None:
        """Pass an event to the subscribers. This may be called from any thread."""
        self._events.put(event)

    def emit_last_event(self, event: Event) -> None:
        """Pass an event to the subscribers when the fleet is closed, before the recaps."""
        self._final_events.append(event)

    def request(
        self,
        member: Member,
        header: dict[str, Any],
        *,
        include_recap: bool = True,
        progress_only: bool = False,
        withheld_kind: str = "",
    ) -> list[Event]:
        """Send a request to a member, pass the events to the subscribers, and return them.

        On a machine with several servers, only one run takes place at a time.

        Args:
            include_recap: whether to include the recap in the member's outcome.
            progress_only: whether to pass on only the progress events.
            withheld_kind: kind of events that are returned but not passed on, because the caller sorts them first.

        Raises:
            Failed: The response lacks the recap that it must contain.
        """
        host_events = list[Event]()
        is_run = header["verb"] == "run"
        with self._register_run(member, header["plan"]["run_id"]) if is_run else contextlib.nullcontext():
            for host_event in member.request(header):
                kind = host_event["event"]
                if kind not in FOREIGN_EVENT_KINDS:
                    host_event = rewrite_commands_in(fixes.complete_event(host_event, member.host))
                host_event = {**host_event, "host": member.host.name}
                host_events.append(host_event)
                if progress_only:
                    if kind == "progress":
                        self._events.put(host_event)
                elif kind != withheld_kind and (include_recap or kind != "recap"):
                    self._record_event(member, host_event)
        if REQUEST_KINDS[header["verb"]].ends_with_recap and events.find_recap(host_events) is None:
            raise Failed("the host did not report a result.", where=member.host.name)
        return host_events

    @contextlib.contextmanager
    def _register_run(self, member: Member, run_id: str) -> Iterator[None]:
        """Wait for other runs on the member's machine, and register this one. Raises Inconclusive after Ctrl-C."""
        with self._machine_locks[member.host.machine] if member.host.shared_machine else contextlib.nullcontext():
            with self._runs_mutex:
                if member.host.name in self._withdrawn_hosts:
                    raise Inconclusive("stopped by Ctrl-C before it started.")
                self._running_hosts.add(member.host.name)
                member.run_id = run_id
            try:
                yield
            finally:
                self._running_hosts.discard(member.host.name)

    def _run(self, batch: Sequence[Member], plan_for: Callable[[Member], Plan]) -> None:
        self.run_parallel(
            batch,
            lambda member: self.request(member, build_run_request(member, plan_for(member))),
            after_each=self._report_finished,
        )

    def _run_together(self, batch: Sequence[Member], plan_for: Callable[[Member], Plan]) -> None:
        """Run the plans of a cluster's members, or none if one could not be built, because members wait for each other."""
        plans: dict[str, Plan] = {}

        def store_plan(member: Member) -> None:
            plans[member.host.name] = plan_for(member)

        self.run_parallel(batch, store_plan)
        unplanned = [member for member in batch if member.host.name not in plans]
        if not unplanned:
            self._run(batch, lambda member: plans[member.host.name])
            return
        for member in unplanned:
            self._report_finished(member)
        if len(unplanned) < len(batch):
            names = join_names([member.host.name for member in unplanned])
            self.stop_reason = f"there is no plan for {names}, so nothing was started"

    def _preview_members(
        self,
        waiting_members: dict[str, Member],
        preview: Callable[[Member], Plan],
        rollout: PlayRollout,
        *,
        is_rolling: bool,
    ) -> dict[str, Member]:
        """Check all hosts in parallel before any is changed, and return those on which to run the play.

        The others are finished: those without changes are ok, and those that refuse the play have failed.
        """
        rollout.record_batch([])
        self._notify(event("looking", host="", hosts=list(waiting_members)))
        finished: dict[str, Member] = {}

        def check(member: Member) -> None:
            host_events = self.request(member, {"verb": "run", "plan": preview(member).to_json()}, progress_only=True)
            if host_events[-1]["event"] == "recap" and host_events[-1]["exit"] in FINISHED_EXIT_CODES:
                for host_event in host_events:
                    self._record_event(member, host_event)

        def report_if_finished(member: Member) -> None:
            if member.recap is recaps_before[member.host.name]:
                self._events.put(event("waiting", host=member.host.name))
                return
            finished[member.host.name] = member
            self._report_finished(member)

        recaps_before = {name: member.recap for name, member in waiting_members.items()}
        self.run_parallel(list(waiting_members.values()), check, report_if_finished)
        failed = _failure_reasons(finished.values())
        self.stop_reason = rollout.policy.precheck_stop_reason(
            list(failed), list(waiting_members), is_rolling=is_rolling
        )
        rollout.record_outcomes([name for name in finished if name not in failed], failed)
        return {name: member for name, member in waiting_members.items() if name not in finished}

    def _report_finished(self, member: Member) -> None:
        recap = {key: value for key, value in (member.recap or {}).items() if key not in ("event", "time")}
        self._events.put(event("host_finished", **{"host": member.host.name, **recap}))

    def _act_on_member(
        self, member: Member, action: Callable[[Member], object], after_each: Callable[[Member], object]
    ) -> None:
        try:
            action(member)
        except Exception as error:
            self._record_event(member, events.build_error_recap(member.host.name, convert_error(error)))
        after_each(member)

    def _record_event(self, member: Member, event: Event) -> None:
        """Record an event in the member and pass it on. Recaps are merged, and passed on by `close`."""
        if event["event"] == "recap":
            member.recap = events.merge_recaps(member.recap, event)
            return
        if event["event"] == "task_finished":
            member.store_results(event)
        self._events.put(event)

    def _handle_interrupt(self, find_running: Callable[[], list[Member]]) -> None:
        """Handle Ctrl-C: stop the runs, or disconnect and leave them running. Other requests end with their connection."""
        host_list = ",".join(member.host.name for member in find_running() if self._is_running(member))
        self._is_interrupted = True
        should_stop = bool(host_list) and self.ask_stop(host_list, lambda: bool(find_running()))
        # selected again, because runs may have started or ended while the user was being asked
        with self._runs_mutex:
            unfinished = find_running()
            running = [member for member in unfinished if self._is_running(member)]
            self._withdrawn_hosts.update(member.host.name for member in unfinished if member not in running)
        if should_stop:
            for member in running:
                threading.Thread(target=here.bind_folder(self._stop), args=(member,), daemon=True).start()
        if should_stop or (host_list and not unfinished):
            return
        for member in unfinished:
            member.open().close()
        if not running:
            raise Inconclusive("stopped by Ctrl-C.")
        host_list = ",".join(member.host.name for member in running)
        others = "; no other run starts" if len(unfinished) > len(running) else ""
        raise Inconclusive(
            f"still running on {host_list}{others}.", fix=f"Follow it with `invoke attach --host {host_list}`."
        )

    def _is_running(self, member: Member) -> bool:
        return member.host.name in self._running_hosts

    def _stop(self, member: Member) -> None:
        """Ask a member to stop the run that this command started."""
        collections.deque(member.request({"verb": "stop", "run": member.run_id}, secrets={}), maxlen=0)

    def _notify(self, event: Event) -> None:
        # hosts' events were sanitized on arrival; this is for names of plays, and for reasons from files and libraries
        event = rewrite_commands_in(sanitize(event))
        for subscriber in self.subscribers:
            self._notify_guarded(subscriber, subscriber.on, event)

    def _notify_guarded(self, subscriber: Subscriber, method: Callable[..., object], *arguments: Event) -> None:
        """Call a subscriber's method. Only its first error is printed; other subscribers and hosts are not affected."""
        try:
            method(*arguments)
        except BrokenPipeError:
            raise  # the reader of standard output is gone
        except Exception as error:
            self._has_lost_output |= isinstance(error, OSError)
            if id(subscriber) not in self._broken_subscribers:
                self._broken_subscribers.add(id(subscriber))
                message = f"{type(subscriber).__name__}: {convert_error(error)} The run continues."
                print(escape_invisible(message), file=sys.stderr)


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


def _failure_reasons(members: Iterable[Member]) -> dict[str, str]:
    """Return the messages of members that failed, by host name."""
    return {member.host.name: str((member.recap or {}).get("msg", "")) for member in members if member.failed}
