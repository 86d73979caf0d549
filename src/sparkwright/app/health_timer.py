"""The `health.install`, `health.uninstall` and `monitoring.install` commands: set up health timers and monitoring."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparkwright import defaults, units
from sparkwright.app.connect import Selection, assign_become_password, default_pattern, select_hosts, select_machines
from sparkwright.app.plans import clusters, server_context
from sparkwright.app.runs import session
from sparkwright.console.command_output import print_json_line, print_prose
from sparkwright.errors import Exit, Refused
from sparkwright.host.records.server_keys import HEAL_TOKEN_SECRET
from sparkwright.host.state import write_atomically
from sparkwright.monitoring import alerts, dashboard, scrape
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.cluster import new_token
from sparkwright.protocol.plan import Task
from sparkwright.secret import Secret
from sparkwright.visible import one_line

#: hosts of services whose webhook URL is itself a secret
SECRET_URL_HOSTS = ("hooks.slack.com", "discord.com", "discordapp.com", "office.com", "chat.googleapis.com")
#: for example 02:00-05:00
_QUIET_HOURS_PATTERN = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d-(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)

_TOKEN_TASK = Task(id="token", name="Renew the secret of the cluster's checks", module="keep_heal_token")
RULES_FILE, DASHBOARD_FILE, SCRAPE_FILE = (
    "sparkwright.rules.yml",
    "sparkwright.dashboard.json",
    "sparkwright.scrape.yml",
)
#: where each monitoring file is used
USAGE_HINTS = {
    RULES_FILE: "rule_files of prometheus.yml",
    SCRAPE_FILE: "scrape_config_files of prometheus.yml (2.43 and newer; else paste it)",
    DASHBOARD_FILE: "Grafana: Dashboards, New, Import",
}
FILE_MODE = 0o644
RUNBOOK_URL_PATTERN = re.compile(r"https?://[\w.\[\]:-]+/[\w./~%?=&+-]*")


def install(pattern: str, *, json: bool, **options: Any) -> list[int]:
    """Install the timer on the hosts that match a pattern, with the options of `health.install`.

    Raises Refused for an invalid value.
    """
    for name, choices in (("heal", defaults.HEAL_MODES), ("webhook_format", defaults.WEBHOOK_FORMATS)):
        if options[name] not in choices:
            flag = f"--{name.replace('_', '-')}"
            raise Refused(f"{flag} must be one of {', '.join(choices)}, got '{one_line(options[name], max_chars=80)}'.")
    args = {
        "every_s": units.parse_duration(options["every"], "--every", min_s=30),
        "heal_every_s": units.parse_duration(options["heal_every"], "--heal-every", min_s=600),
        "smoke_every_s": units.parse_duration(options["smoke_every"], "--smoke-every"),
        "command": _split_command(options["command"]),
        "webhook": _require_public_url(options["webhook"]),
        **_hashing_arguments(options["verify_models"], options["quiet_hours"]),
        **{name: options[name] for name in ("heal", "webhook_file", "webhook_format", "textfile", "system")},
    }

    def tasks_for(host: Host, can_wake: bool) -> tuple[Task, ...]:
        timer = _timer_task({**args, "host": host.machine, "wake": can_wake}, become=options["system"])
        return (_TOKEN_TASK, timer) if host.cluster else (timer,)

    return _run_on_hosts(pattern, json, tasks_for, is_healing=options["heal"] == "restart")


def uninstall(pattern: str, *, json: bool) -> list[int]:
    """Remove the user's and root's timers from the hosts that match a pattern."""
    absent_args: dict[str, Any] = {"state": "absent"}
    remove_user_timer = _timer_task(absent_args, register="users")
    remove_root_timer = _timer_task({**absent_args, "system": True}, become=True, when=("'system' in users.elsewhere",))
    return _run_on_hosts(pattern, json, lambda host, can_wake: (remove_user_timer, remove_root_timer), is_removal=True)


def _hashing_arguments(interval: str, quiet_hours: str) -> dict[str, Any]:
    """Return the task's arguments for hashing the model's files at intervals. Raises Refused for invalid options."""
    if quiet_hours and not interval:
        raise Refused("--quiet-hours needs --verify-models.", fix="Add `--verify-models 7d`.")
    begin, _, end = quiet_hours.partition("-")
    if quiet_hours and not (_QUIET_HOURS_PATTERN.fullmatch(quiet_hours) and begin != end):
        raise Refused(f"--quiet-hours {one_line(quiet_hours)!r} is not a time span.", fix="Write it as 02:00-05:00.")
    interval_s = units.parse_duration(interval, "--verify-models", min_s=86400) if interval else 0.0
    return {"verify_every_s": interval_s, "quiet_hours": quiet_hours}


def _split_command(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Refused(f"--command: {str(error).lower()} in {command!r}.", fix="Quote it as for a shell.") from None


def _require_public_url(url: str) -> str:
    """Return the webhook's URL. Raises Refused if it is invalid or contains a secret, because files and plans contain it."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        is_valid = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and url.isascii()
            and url.isprintable()
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Refused("--webhook is not an http(s) URL.")
    is_known_secret = any(f".{parts.hostname}".endswith(f".{host}") for host in SECRET_URL_HOSTS)
    if parts.username or parts.password or parts.query or is_known_secret:
        fix = "Write it to a file on the host, mode 0600, and pass `--webhook-file PATH`."
        raise Refused("the --webhook URL contains a secret, which would be written to a file.", fix=fix)
    return url


def _timer_task(args: dict[str, Any], **task_fields: Any) -> Task:
    is_root = task_fields.get("become")
    removal_name = "Remove root's health timer" if is_root else "Remove the health timer"
    name = removal_name if args.get("state") == "absent" else "Install the health timer"
    owner = "root" if is_root else "user"
    return Task(id=f"health_timer_{owner}", name=name, module="health_timer", args=args, **task_fields)


def _run_on_hosts(
    pattern: str,
    json: bool,
    tasks_for: Callable[[Host, bool], tuple[Task, ...]],
    *,
    is_healing: bool = False,
    is_removal: bool = False,
) -> list[int]:
    """Run tasks on the hosts that match a pattern, and return the exit codes.

    Args:
        tasks_for: returns the tasks for a host; the second argument is True if requests may wake servers on its machine.
        is_healing: the checks may restart servers.
        is_removal: the tasks remove the timers.
    """
    selection = select_hosts(pattern)
    waking_machines = {server.machine for server in selection.inventory.hosts.values() if server.wake.on_request}
    needs_restart_plans = is_healing or any(
        member.host.machine in waking_machines for member in selection.fleet.members
    )
    if is_removal or not needs_restart_plans:
        selection = select_machines(selection)
    if not is_removal:
        clusters.refuse_partial_clusters(selection)
    tokens: dict[str, Secret] = defaultdict(new_token)
    for member in selection.fleet.members:
        assign_become_password(member)
        if is_healing and member.host.cluster:
            member.secrets[HEAL_TOKEN_SECRET] = tokens[member.host.cluster.name]
    if needs_restart_plans and not is_removal:
        server_context.attach_restart_plans(selection)
    # not exclusive: the host's lock would block the first check
    return session.run_tasks(
        selection, "Health", lambda host: tasks_for(host, host.machine in waking_machines), exclusive=False, json=json
    )


def install_monitoring(
    pattern: str, *, folder: str, runbook_url: str, textfile_folder: str, system: bool, check: bool, json: bool
) -> list[int]:
    """Write the files to `folder`, and make the hosts' checks write their metrics to `textfile_folder`. Return the exit codes.

    Raises Refused if neither is set, if `folder` can't be written, or if `runbook_url` is not a URL.
    """
    if not folder and not textfile_folder:
        raise Refused(
            "no folder was named: pass --to DIR for the files, --textfile DIR for the hosts' metrics, or both."
        )
    if runbook_url and not RUNBOOK_URL_PATTERN.fullmatch(runbook_url):
        raise Refused(f"'{runbook_url}' is not an http(s) URL of a page.", where="--runbooks")
    # before any file is written, because the selection may be refused
    textfile_hosts = select_machines(select_hosts(pattern)) if textfile_folder else None
    codes = [_write_files(pattern, Path(folder).expanduser(), runbook_url, check=check, json=json)] if folder else []
    return codes + (
        _configure_textfile(textfile_hosts, textfile_folder, system=system, check=check, json=json)
        if textfile_hosts
        else []
    )


def _write_files(pattern: str, folder: Path, runbook_url: str, *, check: bool, json: bool) -> int:
    selection = select_machines(select_hosts(pattern or default_pattern()))
    hosts = [
        scrape.Endpoint(host.name, host.address, scrape.NODE_PORT)
        for host in selection.hosts
        if host.connection != "sandbox"
    ]
    host_names = {host.name for host in selection.hosts}
    texts = {
        RULES_FILE: alerts.render_rules(runbook_url),
        DASHBOARD_FILE: dashboard.render_dashboard(),
        SCRAPE_FILE: scrape.render_config(SCRAPE_FILE, hosts, _gateway_endpoints(selection.inventory, host_names)),
    }
    changed_names = [name for name, text in texts.items() if _read_text(folder / name) != text]
    if not check:
        try:
            for name in changed_names:
                write_atomically(folder / name, texts[name].encode(), mode=FILE_MODE)
        except OSError as error:
            raise Refused(
                f"{error.filename}: {error.strerror}.", fix="Name a folder that you may write to: --to DIR."
            ) from None
    if json:
        print_json_line(
            {"folder": str(folder), "files": {name: name in changed_names for name in texts}, "check": check}
        )
        return Exit.CHANGES if check and changed_names else Exit.OK
    for name in texts:
        outcome = ("would be written" if check else "written") if name in changed_names else "unchanged"
        print_prose(f"{folder / name}: {outcome}. For {USAGE_HINTS[name]}.")
    return Exit.CHANGES if check and changed_names else Exit.OK


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _gateway_endpoints(inventory: Inventory, host_names: set[str]) -> list[scrape.Endpoint]:
    return [
        scrape.Endpoint(
            gateway.name,
            inventory.machines[gateway.host].address,
            gateway.file.port,
            gateway.file.tls != "none",
            gateway.file.key is not None,
            bool(gateway.file.clients),
        )
        for gateway in inventory.gateways.values()
        if gateway.host in host_names
    ]


def _configure_textfile(
    selection: Selection, textfile_folder: str, *, system: bool, check: bool, json: bool
) -> list[int]:
    """Make the checks of each host write their metrics to a folder, and change nothing else about the timer."""
    for member in selection.fleet.members:
        assign_become_password(member)
    args: dict[str, Any] = {"textfile": textfile_folder, "system": system, "keep": True}
    name = "Write metrics where node_exporter reads them"
    task = Task(id="textfile", name=name, module="health_timer", args=args, become=system)
    return session.run_tasks(selection, "Monitoring", lambda host: (task,), exclusive=False, json=json, check=check)
