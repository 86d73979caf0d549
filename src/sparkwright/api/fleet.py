"""`Fleet`, a project's hosts for use by programs. It calls the same code as the commands and prints nothing."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, cast

from sparkwright import here, units
from sparkwright.api.results import Diagnosis, History, HostInfo, HostStatus, Incident, Log, Report
from sparkwright.api.run import Run
from sparkwright.app.connect import connect_hosts, default_pattern, restrict_to_recipe, select_hosts
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.options import DeployOptions
from sparkwright.errors import SparkwrightError
from sparkwright.fleet.member import close_links
from sparkwright.project.folder import Project

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class Options(TypedDict, total=False):
    """Options of a run, as for the command."""

    #: change nothing
    check: bool
    diff: bool
    #: separated by commas
    tags: str
    #: separated by commas
    skip_tags: str
    start_at_task: str
    #: wait for the host's lock instead of failing
    wait: bool
    #: number of hosts to deploy to before the others
    canary: int
    #: size of the batches: "2", "50%" or "1,4"
    serial: str
    max_fail_percentage: str
    resume: bool
    skip_unreachable: bool


def _in_project(
    method: Callable[Concatenate[Fleet, Params], Answer],
) -> Callable[Concatenate[Fleet, Params], Answer]:
    @functools.wraps(method)
    def run_in_project(self: Fleet, *args: Params.args, **options: Params.kwargs) -> Answer:
        with here.use_folder(self.root):
            return method(self, *args, **options)

    return cast(Callable[Concatenate["Fleet", Params], Answer], run_in_project)


class Fleet:
    """The hosts of one project.

    Several fleets may be used in one process and in several threads. A fleet holds no connections.

    The methods take `hosts`, a pattern like --host: "spark1", "spark1,spark2", a group, "all", "lab:!spark3". Every method raises
    Refused for a mistake in the project's files, and for an unknown host.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, path: str | Path = ".") -> Fleet:
        """Open the project in a folder or in one of its parents. Raises Refused if there is none."""
        with here.use_folder(Path(path).expanduser().resolve()):
            return cls(Project.here().root)

    @_in_project
    def hosts(self, hosts: str = "all") -> tuple[HostInfo, ...]:
        """Return the hosts of the inventory, without contacting any."""
        from sparkwright.app.queries.host_records import inventory_row

        return tuple(map(inventory_row, select_hosts(hosts).hosts))

    @_in_project
    def status(self, hosts: str = "") -> tuple[HostStatus, ...]:
        """Return the state of every host, from the last scheduled check or from now.

        Args:
            hosts: a pattern; empty for all hosts except sandboxes.
        """
        selection = connect_hosts(hosts or default_pattern(), "light")
        from sparkwright.app.queries import fleet_status

        try:
            return tuple(fleet_status.query_rows(selection, fleet_status.intended_servers(selection)))
        finally:
            close_links(selection.fleet.members)

    @_in_project
    def diagnose(self, hosts: str, *, token_s: float = 0.0) -> tuple[Diagnosis, ...]:
        """Find out why hosts are slow or down. Idle servers are measured, which takes up to a minute.

        Args:
            token_s: how long a token may take, in seconds.
        """
        from sparkwright.app.queries import diagnosis

        selection = select_hosts(hosts)
        try:
            return tuple(diagnosis.query_diagnoses(selection, token_s))
        finally:
            close_links(selection.fleet.members)

    @_in_project
    def logs(self, hosts: str, *, tail: int = 1000) -> tuple[Log, ...]:
        """Return the last lines of the servers' logs, and the engines' state as logged by the last start."""
        from sparkwright.app.queries import log_source

        return tuple(
            Log(of_host.source["host"], of_host.text, of_host.state, of_host.known, of_host.error, of_host.exit)
            for of_host in log_source.query_hosts(hosts, tail)
        )

    @_in_project
    def history(self, hosts: str, *, last: int = 20) -> tuple[History, ...]:
        """Return the history of each server, newest entry first.

        Args:
            last: number of entries to return.
        """
        from sparkwright.app.queries import host_records

        selection = select_hosts(hosts)
        answers, errors = host_records.query_events(selection, {"verb": "history"}), selection.fleet.errors()
        return tuple(
            History(host.name, **_error_fields(errors[host.name]))
            if host.name in errors
            else History(host.name, tuple(host_records.history_entries(answers[host.name], last)))
            for host in selection.hosts
        )

    @_in_project
    def incident(self, hosts: str, *, run: str = "") -> tuple[Incident, ...]:
        """Return the diagnostics of a failure, without writing any file.

        Args:
            run: id of the failed run; empty for the newest incident.
        """
        from sparkwright.app.queries import host_records

        selection = select_hosts(hosts)
        answers, errors = (
            host_records.query_events(selection, {"verb": "incident", "run": run}),
            selection.fleet.errors(),
        )

        def fetch_incident(host: str) -> Incident:
            try:
                if host in errors:
                    raise errors[host]
                return Incident(host, *host_records.parse_incident(host, answers[host], run))
            except SparkwrightError as error:
                return Incident(host, **_error_fields(error))

        return tuple(fetch_incident(host.name) for host in selection.hosts)

    @_in_project
    def report(self, hosts: str = "", *, since: str = "7d") -> tuple[Report, ...]:
        """Summarise the scheduled checks.

        Args:
            since: how far back, for example 90m, 12h or 7d.
        """
        from sparkwright.app.queries import host_records

        span_s = units.parse_duration(since, "since", min_s=60)
        now_s = time.time()
        host_reports = host_records.query_reports(
            connect_hosts(hosts or default_pattern(), "light"), now_s - span_s, now_s
        )
        return tuple(map(host_records.report_row, host_reports))

    def plan(self, hosts: str, **options: Unpack[Options]) -> Run:
        """Show what `deploy` would change, without changing anything. The exit code is 2 if anything would change."""
        return self._play("deploy", hosts, {"diff": True, **options, "check": True})

    def deploy(self, hosts: str, *, rollback: bool = True, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Deploy each recipe and verify it.

        Args:
            rollback: restore the previous server if that fails.
            anyway: start a configuration with which the host went down before.
        """
        return self._play("deploy", hosts, options, rollback=rollback, anyway=anyway)

    def restart(self, hosts: str, *, keep: bool = False, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Restart the servers and verify them.

        Args:
            keep: keep the page cache too, where it fits.
            anyway: start a configuration with which the host went down before.
        """
        return self._play("restart", hosts, options, keep=keep, anyway=anyway)

    def switch(self, hosts: str, to: str, *, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Wake the server of a recipe that takes turns in its host's memory.

        Args:
            to: the recipe.
            anyway: start a configuration with which the host went down before.
        """
        return self._play("switch", restrict_to_recipe(hosts, to), options, anyway=anyway)

    def rollback(self, hosts: str, *, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Return to the last verified server.

        Args:
            anyway: start a configuration with which the host went down before.
        """
        return self._play("rollback", hosts, options, anyway=anyway)

    def verify(self, hosts: str, *, new_baseline: bool = False, **options: Unpack[Options]) -> Run:
        """Check running servers: health, GPU, log, throughput, text.

        Args:
            new_baseline: save the measurements as the new baseline.
        """
        return self._play("verify", hosts, options, new_baseline=new_baseline)

    def run_playbook(self, playbook: str, hosts: str, **options: Unpack[Options]) -> Run:
        """Run a playbook of the project."""
        return self._play(playbook, hosts, options)

    def _play(self, playbook: str, hosts: str, options: Options, **command_options: Any) -> Run:
        """Run a command's playbook. Raises TypeError for an unknown option.

        Args:
            command_options: options that only this command has.
        """
        if unknown := options.keys() - Options.__annotations__.keys():
            raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
        deploy_options = DeployOptions(host=hosts, json=True, **options, **command_options)
        return Run(self.root, lambda on_event: playbooks.run(playbook, playbook, deploy_options, on_event=on_event))

    def health(self, hosts: str, *, smoke: bool = False, token_s: float = 0.0) -> Run:
        """Check the servers' health now.

        Args:
            smoke: measure the decode rate too.
            token_s: how long a token may take, in seconds.
        """
        header = {"verb": "health", "smoke": smoke, "token_s": token_s}
        from sparkwright.app.runs import session

        return Run(
            self.root, lambda on_event: session.send_request(select_hosts(hosts), header, json=True, on_event=on_event)
        )

    def attach(self, hosts: str, *, run: str = "") -> Run:
        """Follow a run again, from its first event.

        Args:
            run: id of the run; empty for the newest.
        """
        from sparkwright.app.runs import session

        header = {"verb": "attach", "run": run}
        return Run(
            self.root, lambda on_event: session.send_request(select_hosts(hosts), header, json=True, on_event=on_event)
        )


def _error_fields(error: SparkwrightError) -> dict[str, Any]:
    return {"error": str(error), "exit": error.exit}
