"""Presentation of a command's events to a program, a terminal or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sparkwright.app.connect import SelectedHosts
from sparkwright.app.prompts import ask_to_stop
from sparkwright.app.runs.options import DeployOptions
from sparkwright.console.events.subscriber import JsonLines, Subscriber
from sparkwright.console.events.summary import ServerSummary, Summary
from sparkwright.errors import Inconclusive
from sparkwright.fleet.fleet import Fleet


class Listener(Subscriber, Protocol):
    """A program that receives the events directly."""

    def attach(self, fleet: Fleet) -> None:
        """Called with the fleet before its first event. The listener may set `ask_stop` and interrupt the fleet later."""


class RunOutput:
    """A command's output: JSON lines, or text (live on a terminal) with a panel at the end.

    Args:
        rows: set for a playbook's run: several hosts get one row each and no panels, a cluster also the panel of its head, and
            a single host on a terminal one line per stage.
        check: set, along with `diff`, for a plan: changes are grouped over several hosts, and on a terminal for one host too.
        verbose: show every task of every host.
        on_event: receives the events instead of printing them.
    """

    def __init__(
        self,
        selection: SelectedHosts,
        *,
        json: bool,
        diff: bool,
        rows: bool = False,
        check: bool = False,
        verbose: bool = False,
        on_event: Listener | None = None,
    ) -> None:
        self._project = selection.project
        self._workers = {host.name for host in selection.hosts if host.cluster and host.cluster.head != host.name}
        self._summary: Summary | None = None
        if on_event is not None:
            selection.fleet.subscribers = [on_event]
            on_event.attach(selection.fleet)
            return
        selection.fleet.ask_stop = ask_to_stop
        if json:
            selection.fleet.subscribers = [JsonLines()]
            return
        from sparkwright.console.events.tables import ResultTables

        plan = check and diff and not verbose and (len(selection.hosts) > 1 or sys.stdout.isatty())
        tasks = diff or verbose or not rows
        many = not tasks and len(selection.hosts) > 1
        lines = (
            _plan_presenter() if plan else _line_presenter(diff, tasks=tasks, many=many, together=bool(self._workers))
        )
        lines.hosts([host.name for host in selection.hosts])
        self._summary = Summary(lines.write)
        panels = not plan and (not many or bool(self._workers))
        selection.fleet.subscribers = [lines, ResultTables(lines.write), *([self._summary] if panels else [])]

    @classmethod
    def for_playbook_run(cls, selection: SelectedHosts, options: DeployOptions, on_event: Listener | None) -> RunOutput:
        """Create the output of a playbook's run."""
        output_options = {name: getattr(options, name) for name in ("json", "diff", "check", "verbose")}
        return cls(selection, rows=True, on_event=on_event, **output_options)

    def store_server(self, served: ServerSummary) -> None:
        """Store the server that a host will run, for the panel."""
        if self._summary is not None and served.host not in self._workers:
            self._summary.set_server(served)


def _plan_presenter() -> Any:
    """Return the presenter of a plan's changes. On a terminal it shows how many hosts have been checked so far."""
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
        if not text:
            status.stop()

    return PlanGroups(write=lambda style, text: print_line(console, style, text), working=show_progress)


def _line_presenter(diff: bool, *, tasks: bool, many: bool, together: bool) -> Any:
    """Return the presenter that prints a line per task, per stage on a terminal, or per host."""
    if not sys.stdout.isatty():
        from sparkwright.console.events.host_lines import HostLines
        from sparkwright.console.events.lines import TaskLines

        return HostLines(together=together) if many else TaskLines(diff=diff)
    if many:
        from sparkwright.console.events.live_lines import HostTable

        return HostTable(together=together)
    if tasks:
        from sparkwright.console.events.live_lines import LiveTaskLines

        return LiveTaskLines(diff=diff)
    from sparkwright.console.events.stage_lines import StageLines

    return StageLines()


@contextmanager
def closing_fleet(fleet: Fleet, on_leave: Callable[[Inconclusive], None] = lambda error: None) -> Iterator[None]:
    """Close the fleet after the block that runs it.

    Args:
        on_leave: called with the error if the command ends while hosts are still working.
    """
    try:
        yield
    except Inconclusive as error:
        on_leave(error)
        raise
    except KeyboardInterrupt:  # outside the fleet's waits, which handle Ctrl-C themselves
        names = ",".join(member.host.name for member in fleet.members)
        interruption = Inconclusive(
            "stopped by Ctrl-C.", fix=f"Runs that were started continue: `invoke attach --host {names}`."
        )
        on_leave(interruption)
        raise interruption from None
    finally:
        fleet.close()
