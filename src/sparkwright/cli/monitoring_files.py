"""The command about monitoring systems: `monitoring.install`."""

from __future__ import annotations

from sparkwright.cli.framework.command import command


@command(
    help={
        "host": "the hosts to scrape (default: all but sandboxes); with --textfile, those whose metrics go there",
        "to": "the folder for rules, scrape configuration and dashboard; files of the same name are replaced",
        "runbooks": "where your copy of docs/alerts.md is, for the links of the alerts (default: this project's own)",
        "textfile": "on the hosts: the folder of node_exporter's textfile collector; the health timer must be installed",
        "system": "the health timer is root's (as with `health.install --system`)",
        "check": "only show; exit code 2 when something would change",
        "json": "one JSON object: the files, and whether each changed; with --textfile events as JSON lines",
    }
)
def install(
    host: str = "",
    to: str = "",
    runbooks: str = "",
    textfile: str = "",
    system: bool = False,
    check: bool = False,
    json: bool = False,
) -> list[int]:
    """Write alert rules for Prometheus, a dashboard for Grafana.

    Also what to scrape, for the hosts and gateways of the inventory; and has the hosts' checks write their metrics where
    node_exporter reads them.
    """
    from sparkwright.app import monitoring_files

    return monitoring_files.install(
        host, to=to, runbooks=runbooks, textfile=textfile, system=system, check=check, json=json
    )


TASKS = {"monitoring": [install]}
