"""The commands that check a server's health: now, on a schedule, or with a monitoring system (`monitoring.install`)."""

from __future__ import annotations

from sparkwright import defaults
from sparkwright.cli.framework.command import command


@command(
    default=True,
    help={
        "smoke": "measure the decode rate too (10 to 30 s on an idle server)",
        "token-s": f"how long a token may take, seconds (default: as installed, or {defaults.TOKEN_TIMEOUT_S})",
        "json": "events as JSON lines",
    },
)
def check(host: str = "", recipe: str = "", smoke: bool = False, token_s: float = 0.0, json: bool = False) -> list[int]:
    """Check a server's health now.

    A worker of a cluster answers for its rank: whether its container runs, and has joined.

    Exit code: 0 ok or starting, 2 degraded, 1 down or worse, 3 unreachable, 4 unknown.
    """
    from sparkwright.app.connect import restrict_to_recipe, select_hosts
    from sparkwright.app.runs import session

    header = {"verb": "health", "smoke": smoke, "token_s": token_s}
    return session.send_request(select_hosts(restrict_to_recipe(host, recipe)), header, json=json)


@command(
    help={
        "every": f"how often: 5m, 90s, 1h (default {defaults.HEALTH_INTERVAL})",
        "system": "use root's systemd (needs sudo) instead of the user's, with linger",
        "heal": "none (default), or restart: safely restart the server where a restart helps",
        "heal-every": f"at most one such restart in this time (default {defaults.MIN_HEAL_INTERVAL})",
        "smoke-every": f"how often the decode rate is measured; 0: never (default {defaults.SMOKE_INTERVAL})",
        "command": "run on a change of state: a program on the host and its arguments; it reads the change as JSON on stdin",
        "webhook": "POST to this URL on a change of state; not for URLs that are a secret",
        "webhook-file": "a file on the host (mode 0600) whose first line is such a URL",
        "webhook-format": "what is POSTed: json, slack, discord, ntfy or alertmanager (default auto: as the URL says, else json)",
        "verify-models": "hash all model files again so often, on the host, while nobody is served: 7d (default: never)",
        "quiet-hours": "only then, on the host's clock: 02:00-05:00 (default: at any time)",
        "textfile": "the folder of node_exporter's textfile collector on the host",
        "json": "events as JSON lines",
    }
)
def install(
    host: str = "",
    every: str = defaults.HEALTH_INTERVAL,
    system: bool = False,
    heal: str = "none",
    heal_every: str = defaults.MIN_HEAL_INTERVAL,
    smoke_every: str = defaults.SMOKE_INTERVAL,
    command: str = "",
    webhook: str = "",
    webhook_file: str = "",
    webhook_format: str = "auto",
    verify_models: str = "",
    quiet_hours: str = "",
    textfile: str = "",
    json: bool = False,
) -> list[int]:
    """Check a server's health on a schedule (systemd timer).

    The host checks by itself; no laptop is needed for it.
    """
    from sparkwright.app import health_timer

    schedule = {"every": every, "system": system, "heal": heal, "heal_every": heal_every, "smoke_every": smoke_every}
    notifications = {"command": command, "webhook": webhook, "webhook_file": webhook_file, "textfile": textfile}
    notifications["webhook_format"] = webhook_format
    hashing = {"verify_models": verify_models, "quiet_hours": quiet_hours}
    return health_timer.install(host, json=json, **schedule, **notifications, **hashing)


@command(help={"json": "events as JSON lines"})
def uninstall(host: str = "", json: bool = False) -> list[int]:
    """Remove the health timer, its settings and records."""
    from sparkwright.app import health_timer

    return health_timer.uninstall(host, json=json)


@command(
    name="install",
    help={
        "host": "the hosts to scrape (default: all but sandboxes); with --textfile, those whose metrics go there",
        "to": "the folder for rules, scrape configuration and dashboard; files of the same name are replaced",
        "runbooks": "where your copy of docs/alerts.md is, for the links of the alerts (default: this project's own)",
        "textfile": "on the hosts: the folder of node_exporter's textfile collector; the health timer must be installed",
        "system": "the health timer is root's (as with `health.install --system`)",
        "check": "only show; exit code 2 when something would change",
        "json": "one JSON object: the files, and whether each changed; with --textfile events as JSON lines",
    },
)
def install_monitoring(
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
    from sparkwright.app import health_timer

    return health_timer.install_monitoring(
        host, to=to, runbooks=runbooks, textfile=textfile, system=system, check=check, json=json
    )


TASKS = {"health": [check, install, uninstall], "monitoring": [install_monitoring]}
