"""The commands that check a server's health: now, on a schedule, or with a monitoring system (`monitoring.install`)."""

from __future__ import annotations

from sparkwright import defaults
from sparkwright.cli.framework.command import command
from sparkwright.visible import join_first


@command(
    default=True,
    help={
        "smoke": "also measure the decode rate (10 to 30 s on an idle server)",
        "token-s": f"time limit for a token, in seconds (default: as installed, or {defaults.TOKEN_TIMEOUT_S})",
        "json": "events as JSON lines",
    },
)
def check(host: str = "", recipe: str = "", smoke: bool = False, token_s: float = 0.0, json: bool = False) -> list[int]:
    """Check a server's health now.

    For a worker of a cluster, checks that its container runs and has joined.

    Exit code: 0 ok, asleep or starting, 2 degraded, 1 down or worse, 3 unreachable, 4 unknown.
    """
    from sparkwright.app.connect import restrict_to_recipe, select_hosts
    from sparkwright.app.runs import session

    header = {"verb": "health", "smoke": smoke, "token_s": token_s}
    return session.send_request(select_hosts(restrict_to_recipe(host, recipe)), header, json=json)


@command(
    help={
        "every": f"how often: 5m, 90s, 1h (default {defaults.HEALTH_INTERVAL}, at least 30s)",
        "system": "use root's systemd (needs sudo) instead of the user's instance with linger, or cron",
        "heal": "none (default), or restart: safely restart the server if that helps",
        "heal-every": f"minimum time between two such restarts (default {defaults.MIN_HEAL_INTERVAL}, at least 10m)",
        "smoke-every": f"how often to measure the decode rate; 0 for never (default {defaults.SMOKE_INTERVAL})",
        "command": "program on the host, with arguments, to run when the state changes; the change is JSON on stdin",
        "webhook": "URL to POST changes of state to; for a secret URL use --webhook-file",
        "webhook-file": "a file on the host (mode 0600) whose first line is the URL",
        "webhook-format": f"format of the POST: {join_first(defaults.WEBHOOK_FORMATS[1:], 9)} (default: from the URL, else json)",
        "verify-models": "how often the host hashes all model files again, while idle: 7d, at least 1d (default: never)",
        "quiet-hours": "hours for --verify-models, in the host's time: 02:00-05:00 (default: at any time)",
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

    The checks run on the host, without a laptop. Also installs the guard of the memory (docs/health.md). An option that is left
    out returns to its default.
    """
    from sparkwright.app import health_timer

    schedule = {"every": every, "system": system, "heal": heal, "heal_every": heal_every, "smoke_every": smoke_every}
    notifications = {"command": command, "webhook": webhook, "webhook_file": webhook_file, "textfile": textfile}
    notifications["webhook_format"] = webhook_format
    hashing = {"verify_models": verify_models, "quiet_hours": quiet_hours}
    return health_timer.install(host, json=json, **schedule, **notifications, **hashing)


@command(help={"json": "events as JSON lines"})
def uninstall(host: str = "", json: bool = False) -> list[int]:
    """Remove the health timer, guard, settings and records."""
    from sparkwright.app import health_timer

    return health_timer.uninstall(host, json=json)


@command(
    name="install",
    help={
        "host": "the hosts to scrape, never sandboxes (default: all); required with --textfile: the hosts that write metrics",
        "to": "the folder for rules, scrape configuration and dashboard; files of the same name are replaced",
        "runbooks": "URL of your copy of docs/alerts.md, for the links in alerts (default: sparkwright's)",
        "textfile": "on the hosts: the folder of node_exporter's textfile collector; the health timer must be installed",
        "system": "the health timer is root's (as with `health.install --system`)",
        "check": "only show; exit code 2 if something would change",
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
    """Write Prometheus alert rules and a Grafana dashboard.

    Also writes the scrape configuration for the inventory's hosts and gateways. With --textfile, the hosts' checks write their
    metrics to a folder that node_exporter reads.
    """
    from sparkwright.app import health_timer

    return health_timer.install_monitoring(
        host, folder=to, runbook_url=runbooks, textfile_folder=textfile, system=system, check=check, json=json
    )


TASKS = {"health": [check, install, uninstall], "monitoring": [install_monitoring]}
