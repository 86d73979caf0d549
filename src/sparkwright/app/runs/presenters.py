"""Presenters of a command's events: a program, a terminal, or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sparkwright.app.connect import SelectedHosts
from sparkwright.app.prompts import stop_asked
from sparkwright.app.runs.options import DeployOptions
from sparkwright.console.events.subscriber import JsonLines, Subscriber
from sparkwright.console.events.summary import Served, Summary
from sparkwright.errors import Inconclusive
from sparkwright.fleet.fleet import Fleet


class Listener(Subscriber, Protocol):
    """A program that receives the events itself."""

    def follows(self, fleet: Fleet) -> None:
        """Called with the fleet before its first event. The listener may set `ask_stop`, and interrupt the fleet later."""


class Shown:
    """The output of a command: JSON lines, or text (live on a terminal) with a panel at the end.

    Args:
        rows: it is a playbook's run: one row per host and no panels if there are several hosts; for a cluster, the panel of its
            head too. For one host on a terminal, a line per stage.
        check: with `diff`, it is a plan: the changes of several hosts are grouped, and on a terminal those of one host too.
        verbose: show every task of every host.
        on_event: a program that receives the events instead; nothing is printed then.
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
            on_event.follows(selection.fleet)
            return
        selection.fleet.ask_stop = stop_asked
        if json:
            selection.fleet.subscribers = [JsonLines()]
            return
        from sparkwright.console.events.tables import Tables

        plan = check and diff and not verbose and (len(selection.hosts) > 1 or sys.stdout.isatty())
        tasks = diff or verbose or not rows
        many = not tasks and len(selection.hosts) > 1
        lines = _plan() if plan else _lines(diff, tasks=tasks, many=many, together=bool(self._workers))
        lines.hosts([host.name for host in selection.hosts])
        self._summary = Summary(lines.write)
        panels = not plan and (not many or bool(self._workers))
        selection.fleet.subscribers = [lines, Tables(lines.write), *([self._summary] if panels else [])]

    @classmethod
    def of_run(cls, selection: SelectedHosts, options: DeployOptions, on_event: Listener | None) -> Shown:
        """Return the output of a playbook's run."""
        about = {name: getattr(options, name) for name in ("json", "diff", "check", "verbose")}
        return cls(selection, rows=True, on_event=on_event, **about)

    def serves(self, served: Served) -> None:
        """Store the server that a host is going to run, for the panel."""
        if self._summary is not None and served.host not in self._workers:
            self._summary.serves(served)


def _plan() -> Any:
    """Return the presenter of a plan's changes. On a terminal it shows how many hosts have been checked meanwhile."""
    from sparkwright.console.events.plan_groups import PlanGroups

    if not sys.stdout.isatty():
        return PlanGroups()
    from sparkwright.console.events.live_lines import printed
    from sparkwright.console.terminal import terminal

    console = terminal()
    status = console.status("")
    status.start()

    def working(text: str) -> None:
        status.update(text)
        if not text:
            status.stop()

    return PlanGroups(write=lambda style, text: printed(console, style, text), working=working)


def _lines(diff: bool, *, tasks: bool, many: bool, together: bool) -> Any:
    """Return the presenter of lines: of tasks, of stages on a terminal, or one row per host."""
    if not sys.stdout.isatty():
        from sparkwright.console.events.host_lines import HostLines
        from sparkwright.console.events.lines import Lines

        return HostLines(together=together) if many else Lines(diff=diff)
    if many:
        from sparkwright.console.events.live_lines import HostTable

        return HostTable(together=together)
    if tasks:
        from sparkwright.console.events.live_lines import Live

        return Live(diff=diff)
    from sparkwright.console.events.stage_lines import StageLines

    return StageLines()


@contextmanager
def ending(fleet: Fleet, left_behind: Callable[[Inconclusive], None] = lambda error: None) -> Iterator[None]:
    """Close the fleet after the block that runs it.

    Args:
        left_behind: called with the error if the laptop leaves while hosts are working.
    """
    try:
        yield
    except Inconclusive as error:
        left_behind(error)
        raise
    except KeyboardInterrupt:  # outside the fleet's waits, which handle Ctrl-C themselves
        names = ",".join(member.host.name for member in fleet.members)
        stopped = Inconclusive("stopped by Ctrl-C.", fix=f"What was begun goes on: `invoke attach --host {names}`.")
        left_behind(stopped)
        raise stopped from None
    finally:
        fleet.close()
