"""`Fleet`: a project's hosts, for use by programs. It calls the same code as the commands and prints nothing."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, Unpack, cast

from sparkwright import here, units
from sparkwright.api.arguments import check_arguments, check_type
from sparkwright.api.results import Diagnosis, History, HostInfo, HostStatus, Incident, Log, Report
from sparkwright.api.run import Run
from sparkwright.app.connect import connect_hosts, default_pattern, restrict_to_recipe, select_hosts
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.defaults import HISTORY_ENTRIES
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.fleet.member import close_links
from sparkwright.project.folder import Project

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class Options(TypedDict, total=False):
    """Options of a run; the same as on the command line."""

    #: change nothing
    check: bool
    diff: bool
    #: comma-separated
    tags: str
    #: comma-separated
    skip_tags: str
    start_at_task: str
    #: wait for the host's lock instead of failing
    wait: bool
    #: number of hosts to deploy to before all others
    canary: int
    #: batch size: "2", "50%" or "1,4"
    serial: str
    max_fail_percentage: str
    resume: bool
    skip_unreachable: bool


def _in_project(
    method: Callable[Concatenate[Fleet, Params], Answer],
) -> Callable[Concatenate[Fleet, Params], Answer]:
    @functools.wraps(method)
    def run_in_project(self: Fleet, *args: Params.args, **options: Params.kwargs) -> Answer:
        check_arguments(method, (self, *args), options)
        with here.use_folder(self.root):
            return method(self, *args, **options)

    return cast(Callable[Concatenate["Fleet", Params], Answer], run_in_project)


class Fleet:
    """The hosts of a project.

    Several fleets may be used in one process and in several threads. A fleet keeps no connections open.

    `hosts` is a pattern as for --host: "spark1", "spark1,spark2", a group, "all", "lab:!spark3". If the project's files contain
    a mistake or a host is unknown, methods raise Refused, or the `Run` that they return does when it is iterated over. They raise
    TypeError for an argument of a wrong type.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, path: str | Path = ".") -> Fleet:
        """Open the project in a folder or in one of its parents. Raises Refused if there is none."""
        check_type("path", path, str, Path)
        with here.use_folder(Path(path).expanduser().resolve()):
            return cls(Project.here().root)

    @_in_project
    def hosts(self, hosts: str = "all") -> tuple[HostInfo, ...]:
        """Return the hosts of the inventory, without contacting any."""
        from sparkwright.app.queries.host_records import inventory_row

        return tuple(map(inventory_row, select_hosts(hosts).hosts))

    @_in_project
    def status(self, hosts: str = "") -> tuple[HostStatus, ...]:
        """Return the state of each host, from its last check while that is valid, otherwise from a probe made now.

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
        """Find out why servers are slow or down. Measuring an idle server takes up to a minute.

        token_s: time limit for a token, in seconds; 0 for the default.
        """
        from sparkwright.app.queries import diagnosis

        _refuse_negative("token_s", token_s)
        selection = select_hosts(hosts)
        try:
            return tuple(diagnosis.query_diagnoses(selection, token_s))
        finally:
            close_links(selection.fleet.members)

    @_in_project
    def logs(self, hosts: str, *, tail: int = 1000) -> tuple[Log, ...]:
        """Return the last lines of each server's log, and the settings that the engine reported when it last started.

        tail: number of lines.
        """
        from sparkwright.app.queries import log_source

        _refuse_negative("tail", tail)
        return tuple(
            Log(log.source["host"], log.text, log.state, log.known, log.error, log.exit)
            for log in log_source.query_hosts(hosts, tail)
        )

    @_in_project
    def history(self, hosts: str, *, last: int = HISTORY_ENTRIES) -> tuple[History, ...]:
        """Return the changes to each server, newest first.

        last: maximum number of entries.
        """
        from sparkwright.app.queries import host_records

        _refuse_negative("last", last)
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
        """Return the diagnostics of a failure on each host. No file is written.

        run: id of the failed run; if empty, the newest incident.
        """
        from sparkwright.app.queries import host_records

        selection = select_hosts(hosts)
        answers = host_records.query_events(selection, {"verb": "incident", "run": run})
        errors = selection.fleet.errors()

        def parse_answer(host: str) -> Incident:
            try:
                if host in errors:
                    raise errors[host]
                return Incident(host, *host_records.parse_incident(host, answers[host], run))
            except SparkwrightError as error:
                return Incident(host, **_error_fields(error))

        return tuple(parse_answer(host.name) for host in selection.hosts)

    @_in_project
    def report(self, hosts: str = "", *, since: str = "7d") -> tuple[Report, ...]:
        """Summarize the scheduled checks.

        hosts: a pattern; empty for all hosts except sandboxes.
        since: how far back, e.g. 90m, 12h or 7d.
        """
        from sparkwright.app.queries import host_records

        span_s = units.parse_duration(since, "since", min_s=60)
        now_s = time.time()
        selection = connect_hosts(hosts or default_pattern(), "light")
        return tuple(map(host_records.report_row, host_records.query_reports(selection, now_s - span_s, now_s)))

    @_in_project
    def plan(self, hosts: str, **options: Unpack[Options]) -> Run:
        """Run `deploy` in check mode, which changes nothing. The exit code is 2 if a deploy would change anything."""
        return self._start_playbook("deploy", hosts, {"diff": True, **options, "check": True})

    @_in_project
    def deploy(self, hosts: str, *, rollback: bool = True, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Deploy and verify the hosts' recipes.

        Args:
            rollback: restore the previous server if the deploy fails.
            anyway: start even a configuration that crashed the host before.
        """
        return self._start_playbook("deploy", hosts, options, rollback=rollback, anyway=anyway)

    @_in_project
    def restart(self, hosts: str, *, keep: bool = False, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Restart the servers and verify them.

        Args:
            keep: do not drop the model from the page cache if the server fits next to it; refused unless the verified server
                is running.
            anyway: see `deploy`.
        """
        return self._start_playbook("restart", hosts, options, keep=keep, anyway=anyway)

    @_in_project
    def switch(self, hosts: str, to: str, *, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Wake an `on_demand` server in place of the one that is awake.

        Args:
            to: name of its recipe.
            anyway: see `deploy`.
        """
        return self._start_playbook("switch", restrict_to_recipe(hosts, to), options, anyway=anyway)

    @_in_project
    def rollback(self, hosts: str, *, anyway: bool = False, **options: Unpack[Options]) -> Run:
        """Roll back to the last verified server or, if that one is in place, to the one before it.

        anyway: see `deploy`.
        """
        return self._start_playbook("rollback", hosts, options, anyway=anyway)

    @_in_project
    def verify(self, hosts: str, *, new_baseline: bool = False, **options: Unpack[Options]) -> Run:
        """Verify the running servers: health, GPU, log, throughput, generated text.

        new_baseline: save the measurements as the new baseline.
        """
        return self._start_playbook("verify", hosts, options, new_baseline=new_baseline)

    @_in_project
    def run_playbook(self, playbook: str, hosts: str, **options: Unpack[Options]) -> Run:
        """Run a playbook of the project."""
        return self._start_playbook(playbook, hosts, options)

    def _start_playbook(self, playbook: str, hosts: str, options: Options, **command_options: Any) -> Run:
        """Run a playbook.

        command_options: options that only this playbook's command has.
        """
        deploy_options = DeployOptions(host=hosts, json=True, **options, **command_options)
        return Run(self.root, lambda on_event: playbooks.run(playbook, playbook, deploy_options, on_event=on_event))

    @_in_project
    def health(self, hosts: str, *, smoke: bool = False, token_s: float = 0.0) -> Run:
        """Check the servers' health now.

        Args:
            smoke: also measure the decode rate.
            token_s: time limit for a token, in seconds; 0 for the default.
        """
        _refuse_negative("token_s", token_s)
        return self._send_request(hosts, {"verb": "health", "smoke": smoke, "token_s": token_s})

    @_in_project
    def attach(self, hosts: str, *, run: str = "") -> Run:
        """Follow a run again, from its first event.

        run: id of the run; if empty, the newest.
        """
        return self._send_request(hosts, {"verb": "attach", "run": run})

    def _send_request(self, hosts: str, header: dict[str, Any]) -> Run:
        from sparkwright.app.runs import session

        return Run(
            self.root, lambda on_event: session.send_request(select_hosts(hosts), header, json=True, on_event=on_event)
        )


def _refuse_negative(name: str, value: float) -> None:
    if not value >= 0:  # refuses NaN too
        raise Refused(f"`{name}` must be at least 0, got {value:g}.")


def _error_fields(error: SparkwrightError) -> dict[str, Any]:
    return {"error": str(error), "exit": error.exit}
