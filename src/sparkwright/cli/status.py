"""The commands `status` and `report`: what every host is doing now, and what it did."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst

HOST = "which hosts: spark1, a group, all; if not given, all but sandboxes"
DEBUG = "show the traceback of an error"


@task(
    help={
        "host": HOST,
        "watch": "stay, and look again every few seconds; Ctrl-C ends it",
        "every": "with --watch: seconds between two looks",
        "json": "one object a host; with --watch one a host and look",
        "debug": DEBUG,
    }
)
@reporting
def status(
    context: object, host: str = "", watch: bool = False, every: float = 5.0, json: bool = False, debug: bool = False
) -> int:
    """One line a host: state, recipe, image, model, tok/s against its baseline, uptime, memory, drift.

    From the last scheduled check; a host without one is looked at now, and that is said. Exit code: 0 every host serves, 2 one is
    degraded, 1 down or worse, 3 unreachable, 4 not known. With --watch always 0.
    """
    from sparkwright.app.connect import everyone, reach

    chosen = reach(host or everyone(), "light")
    from sparkwright.app.questions import fleet_status  # imported while the connections open

    if watch:
        return fleet_status.watch(chosen, every_s=every, json=json)
    return worst(fleet_status.once(chosen, json=json))


@task(
    help={
        "host": HOST,
        "since": "how far back: 90m, 12h, 7d, 2w",
        "to": "the file to write",
        "json": "what the plots show as one object a host, instead of the page",
        "debug": DEBUG,
    }
)
@reporting
def report(
    context: object,
    host: str = "",
    since: str = "7d",
    to: str = "report.html",
    json: bool = False,
    debug: bool = False,
) -> int:
    """What hosts did: state, throughput, memory and temperature over time, as one HTML page that needs nothing else.

    From the checks that each host makes by its own clock. Ends with 3 when a host is unreachable; the page then says so.
    """
    from sparkwright.app.connect import everyone, reach

    chosen = reach(host or everyone(), "light")
    from sparkwright.app.questions import host_report

    return worst(host_report.write(chosen, since, to, json=json))


TASKS = [status, report]
