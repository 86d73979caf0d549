"""The `health.install`, `health.uninstall` and `monitoring.install` commands: health timers on hosts, and monitoring files."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from sparkwright import units
from sparkwright.app.connect import Selection, choose, everyone, machines
from sparkwright.app.plans import clusters, server_context
from sparkwright.app.runs import session
from sparkwright.console.out import say_json, say_prose
from sparkwright.errors import Exit, Refused
from sparkwright.health.notify_shapes import SHAPES
from sparkwright.host.records.server_keys import SECRET as HEAL_TOKEN
from sparkwright.host.state import write_atomically
from sparkwright.monitoring import alerts, dashboard, scrape
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.cluster import new_token
from sparkwright.protocol.plan import Task
from sparkwright.secret import Secret
from sparkwright.visible import one_line

#: services whose webhook URL is itself the secret
KNOWN_SECRET = ("hooks.slack.com", "discord.com", "discordapp.com", "office.com", "chat.googleapis.com")
#: for example 02:00-05:00
_QUIET = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d-(?:[01]\d|2[0-3]):[0-5]\d", re.ASCII)


def install(pattern: str, *, json: bool, **given: Any) -> list[int]:
    """Install the timer on each host of a pattern. Raises Refused for an invalid value.

    Args:
        given: options of `health.install`.
    """
    if given["heal"] not in ("none", "restart"):
        raise Refused(f"--heal {given['heal']!r} is not known.", fix="There are: none, restart.")
    if given["webhook_format"] not in SHAPES:
        raise Refused(
            f"--webhook-format {given['webhook_format']!r} is not known.", fix=f"There are: {', '.join(SHAPES)}."
        )
    args = {
        "every_s": units.seconds(given["every"], "--every", least_s=30),
        "heal_every_s": units.seconds(given["heal_every"], "--heal-every", least_s=600),
        "smoke_every_s": units.seconds(given["smoke_every"], "--smoke-every"),
        "command": _words("--command", given["command"]),
        "webhook": _public("--webhook", given["webhook"]),
        **_hashes(given["verify_models"], given["quiet_hours"]),
        **{name: given[name] for name in ("heal", "webhook_file", "webhook_format", "textfile", "system")},
    }
    heals = given["heal"] == "restart"

    def steps(host: Host, *, wakes: bool) -> tuple[Task, ...]:
        timer = _task({**args, "host": host.machine, "wake": wakes}, become=given["system"])
        return (_KEEP_TOKEN, timer) if host.cluster else (timer,)

    return _on_each(pattern, json, steps, heals=heals)


def uninstall(pattern: str, *, json: bool) -> list[int]:
    """Remove the user's and root's timers from each host of a pattern."""
    absent: dict[str, Any] = {"state": "absent"}
    users = _task(absent, register="users")
    system = _task({**absent, "system": True}, become=True, when=("'system' in users.elsewhere",))
    return _on_each(pattern, json, lambda host, *, wakes: (users, system), removes=True)


def _hashes(every: str, hours: str) -> dict[str, Any]:
    """Return how often, and between which hours, the model's files are hashed again.

    Raises Refused for an invalid interval or span of hours.
    """
    if hours and not every:
        raise Refused("--quiet-hours is for --verify-models.", fix="Add `--verify-models 7d`.")
    begin, _, end = hours.partition("-")
    if hours and not (_QUIET.fullmatch(hours) and begin != end):
        raise Refused(f"--quiet-hours {one_line(hours)!r} is not a time span.", fix="Write it as 02:00-05:00.")
    every_s = units.seconds(every, "--verify-models", least_s=86400) if every else 0.0
    return {"verify_every_s": every_s, "quiet_hours": hours}


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused(f"{option}: {str(error).lower()} in {text!r}.", fix="Quote it as for a shell.") from None


def _public(option: str, url: str) -> str:
    """Return a URL that may be written to a file and a plan: without user, password and query."""
    if not url:
        return ""
    try:
        at = urlsplit(url)
        well = at.scheme in ("http", "https") and at.hostname and at.port != 0 and url.isascii() and url.isprintable()
    except ValueError:
        well = False
    if not well:
        raise Refused(f"{option} is not an http(s) URL.")
    known = any(f".{at.hostname}".endswith(f".{item}") for item in KNOWN_SECRET)
    if at.username or at.password or at.query or known:
        fix = f"Write it to a file on the host, mode 0600, and pass `{option}-file PATH`."
        raise Refused(f"the URL of {option} holds a secret, which would be written to a file.", fix=fix)
    return url


def _task(args: dict[str, Any], **more: Any) -> Task:
    name = "Remove the health timer" if args.get("state") == "absent" else "Install the health timer"
    unique = "root" if more.get("become") else "user"
    return Task(id=f"health_timer_{unique}", name=name, module="health_timer", args=args, **more)


_KEEP_TOKEN = Task(id="token", name="Renew the secret of the cluster's checks", module="keep_heal_token")


class _Steps(Protocol):
    """Returns the tasks for a host. wakes: requests may wake servers on its machine."""

    def __call__(self, host: Host, *, wakes: bool) -> tuple[Task, ...]: ...


def _on_each(pattern: str, json: bool, steps: _Steps, *, heals: bool = False, removes: bool = False) -> list[int]:
    selection = choose(pattern)
    waking = {server.machine for server in selection.inventory.hosts.values() if server.wake.on_request}
    plans = heals or any(member.host.machine in waking for member in selection.fleet.members)
    if removes or not plans:
        selection = machines(selection)
    if not removes:
        clusters.refuse_parts(selection)
    tokens: dict[str, Secret] = defaultdict(new_token)
    for member in selection.fleet.members:
        given = selection.inventory.secrets(member.host)
        member.secrets = {name: given[name] for name in ("BECOME_PASSWORD",) if name in given}
        if heals and member.host.cluster:
            member.secrets[HEAL_TOKEN] = tokens[member.host.cluster.name]
    if plans and not removes:
        server_context.give(selection)
    # without the host's lock, because the first check would find it held by the installation itself
    return session.tasks(
        selection, "Health", lambda host: steps(host, wakes=host.machine in waking), exclusive=False, json=json
    )


RULES, DASHBOARD, SCRAPE = "sparkwright.rules.yml", "sparkwright.dashboard.json", "sparkwright.scrape.yml"
#: how to use each file
NEXT = {
    RULES: "rule_files of prometheus.yml",
    SCRAPE: "scrape_config_files of prometheus.yml (2.43 and newer; else paste it)",
    DASHBOARD: "Grafana: Dashboards, New, Import",
}
READABLE = 0o644
RUNBOOK_URL = re.compile(r"https?://[\w.\[\]:-]+/[\w./~%?=&+-]*")


def install_monitoring(
    pattern: str, *, to: str, runbooks: str, textfile: str, system: bool, check: bool, json: bool
) -> list[int]:
    """Write the files, and make the hosts' checks write their metrics to `textfile`. Return the exit codes.

    Raises Refused if there is nothing to do, if `to` can't be a folder, or if `runbooks` is not a URL.
    """
    if not to and not textfile:
        raise Refused(
            "no folder was named: pass --to DIR for the files, --textfile DIR for the hosts' metrics, or both."
        )
    if runbooks and not RUNBOOK_URL.fullmatch(runbooks):
        raise Refused(f"'{runbooks}' is not an http(s) URL of a page.", where="--runbooks")
    wired = machines(choose(pattern)) if textfile else None  # may refuse, so before any file is written
    codes = [_files(pattern, Path(to).expanduser(), runbooks, check=check, json=json)] if to else []
    return codes + (_wire(wired, textfile, system=system, check=check, json=json) if wired else [])


def _files(pattern: str, folder: Path, runbooks: str, *, check: bool, json: bool) -> int:
    selection = machines(choose(pattern or everyone()))
    hosts = [
        scrape.Endpoint(host.name, host.address, scrape.NODE_PORT)
        for host in selection.hosts
        if host.connection != "sandbox"
    ]
    names = {host.name for host in selection.hosts}
    wanted = {
        RULES: alerts.text(runbooks),
        DASHBOARD: dashboard.text(),
        SCRAPE: scrape.text(SCRAPE, hosts, _gateways(selection.inventory, names)),
    }
    changed = [name for name, text in wanted.items() if _standing(folder / name) != text]
    if not check:
        try:
            for name in changed:
                write_atomically(folder / name, wanted[name].encode(), mode=READABLE)
        except OSError as error:
            raise Refused(
                f"{error.filename}: {error.strerror}.", fix="Name a folder that you may write to: --to DIR."
            ) from None
    if json:
        say_json({"folder": str(folder), "files": {name: name in changed for name in wanted}, "check": check})
        return Exit.CHANGES if check and changed else Exit.OK
    for name in wanted:
        word = ("would be written" if check else "written") if name in changed else "unchanged"
        say_prose(f"{folder / name}: {word}. For {NEXT[name]}.")
    return Exit.CHANGES if check and changed else Exit.OK


def _standing(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _gateways(inventory: Inventory, names: set[str]) -> list[scrape.Endpoint]:
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
        if gateway.host in names
    ]


def _wire(selection: Selection, textfile: str, *, system: bool, check: bool, json: bool) -> list[int]:
    """Make the checks of each host write their metrics to this folder. The timer is otherwise unchanged."""
    for member in selection.fleet.members:
        given = selection.inventory.secrets(member.host)
        member.secrets = {name: given[name] for name in ("BECOME_PASSWORD",) if name in given}
    args: dict[str, Any] = {"textfile": textfile, "system": system, "keep": True}
    name = "Write metrics where node_exporter reads them"
    task = Task(id="textfile", name=name, module="health_timer", args=args, become=system)
    return session.tasks(selection, "Monitoring", lambda host: (task,), exclusive=False, json=json, check=check)
