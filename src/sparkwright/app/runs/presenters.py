"""Present a command's events to a program, on a terminal or in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sparkwright.app.connect import SelectedHosts
from sparkwright.app.prompts import ask_to_stop
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.console.events.subscriber import JsonLines, Subscriber
from sparkwright.console.events.summary import ServerSummary, Summary
from sparkwright.errors import Inconclusive
from sparkwright.fleet.fleet import Fleet

if TYPE_CHECKING:
    from sparkwright.console.events.lines import Presenter


class Listener(Subscriber, Protocol):
    """A program that receives the events directly."""

    def attach(self, fleet: Fleet) -> None:
        """Receive the fleet before its first event. The listener may set `ask_stop`, and call `interrupt` later."""


class RunOutput:
    """A command's output: JSON lines, or text with panels of the servers at the end.

    Args:
        summarize_hosts: for several hosts, print a line per host, and a panel only for the head of a cluster; for one host on
            a terminal, print a line per stage.
        diff: print the differences. With `check`, for several hosts or on a terminal, hosts with the same changes are grouped.
        verbose: print every task of every host.
        on_event: receives the events, so that nothing is printed.
    """

    def __init__(
        self,
        selection: SelectedHosts,
        *,
        json: bool,
        diff: bool,
        summarize_hosts: bool = False,
        check: bool = False,
        verbose: bool = False,
        on_event: Listener | None = None,
    ) -> None:
        self._project = selection.project
        self._workers = {host.name for host in selection.hosts if host.is_worker}
        self._summary: Summary | None = None
        if on_event is not None:
            selection.fleet.subscribers = [on_event]
            on_event.attach(selection.fleet)
            return
        if json:
            selection.fleet.ask_stop = ask_to_stop
            selection.fleet.subscribers = [JsonLines()]
            return
        from sparkwright.console.events.tables import ResultTables

        is_plan = check and diff and not verbose and (len(selection.hosts) > 1 or sys.stdout.isatty())
        prints_tasks = diff or verbose or not summarize_hosts
        prints_hosts, has_cluster = not prints_tasks and len(selection.hosts) > 1, bool(self._workers)
        presenter = (
            _plan_presenter()
            if is_plan
            else _line_presenter(
                diff=diff, prints_tasks=prints_tasks, prints_hosts=prints_hosts, has_cluster=has_cluster
            )
        )
        selection.fleet.ask_stop = _pausing(presenter, ask_to_stop)
        presenter.set_hosts([host.name for host in selection.hosts])
        self._summary = Summary(presenter.write)
        has_panels = not is_plan and (not prints_hosts or has_cluster)
        panels = [self._summary] if has_panels else []
        selection.fleet.subscribers = [presenter, ResultTables(presenter.write), *panels]

    @classmethod
    def for_playbook_run(cls, selection: SelectedHosts, options: DeployOptions, on_event: Listener | None) -> RunOutput:
        output_options = {name: getattr(options, name) for name in ("json", "diff", "check", "verbose")}
        return cls(selection, summarize_hosts=True, on_event=on_event, **output_options)

    def store_server(self, server: ServerSummary) -> None:
        """Store the server that a host will run, for its panel."""
        if self._summary is not None and server.host not in self._workers:
            self._summary.set_server(server)


def _pausing(
    presenter: Presenter, ask: Callable[[str, Callable[[], bool]], bool]
) -> Callable[[str, Callable[[], bool]], bool]:
    """Return a function that asks the question while the presenter shows nothing live, which would overwrite the answer."""

    def ask_while_paused(hosts: str, is_running: Callable[[], bool]) -> bool:
        presenter.pause()
        try:
            return ask(hosts, is_running)
        finally:
            presenter.resume()

    return ask_while_paused


def _plan_presenter() -> Presenter:
    """Return the presenter that groups a plan's changes. On a terminal it shows the progress of the checks."""
    from sparkwright.console.events.plan_groups import PlanGroups

    if not sys.stdout.isatty():
        return PlanGroups()
    from sparkwright.console.events.live_lines import print_line
    from sparkwright.console.terminal import build_console

    console = build_console()
    status = console.status("")
    status.start()

    def show_progress(text: str) -> None:
        status.update(text)
        (status.start if text else status.stop)()

    return PlanGroups(write=lambda style, text: print_line(console, style, text), show_progress=show_progress)


def _line_presenter(*, diff: bool, prints_tasks: bool, prints_hosts: bool, has_cluster: bool) -> Presenter:
    """Return the presenter that prints a line per host or per task, or else per stage on a terminal and per task elsewhere."""
    if not sys.stdout.isatty():
        from sparkwright.console.events.host_lines import HostLines
        from sparkwright.console.events.lines import TaskLines

        return HostLines(is_cluster=has_cluster) if prints_hosts else TaskLines(diff=diff)
    if prints_hosts:
        from sparkwright.console.events.live_lines import HostTable

        return HostTable(is_cluster=has_cluster)
    if prints_tasks:
        from sparkwright.console.events.live_lines import LiveTaskLines

        return LiveTaskLines(diff=diff)
    from sparkwright.console.events.stage_lines import StageLines

    return StageLines()


@contextmanager
def closing_fleet(fleet: Fleet, on_leave: Callable[[Inconclusive], None] = lambda error: None) -> Iterator[None]:
    """Close the fleet after the block, and raise Inconclusive for Ctrl-C.

    Args:
        on_leave: called with the error if the command ends while hosts may still be working.
    """
    try:
        yield
    except Inconclusive as error:
        on_leave(error)
        raise
    except KeyboardInterrupt:  # the fleet handles Ctrl-C itself while it waits for events
        names = ",".join(member.host.name for member in fleet.members)
        interruption = Inconclusive(
            "stopped by Ctrl-C.", fix=f"Runs that were started continue: `invoke attach --host {names}`."
        )
        on_leave(interruption)
        raise interruption from None
    finally:
        fleet.close()
