"""The `monitoring.install` command: files for a monitoring system, and metrics for node_exporter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sparkwright.app.connect import Selection, choose, everyone, machines
from sparkwright.app.runs import session
from sparkwright.console.out import say_json, say_prose
from sparkwright.errors import Exit, Refused
from sparkwright.host.state import write_atomically
from sparkwright.monitoring import alerts, dashboard, scrape
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.plan import Task

RULES, DASHBOARD, SCRAPE = "sparkwright.rules.yml", "sparkwright.dashboard.json", "sparkwright.scrape.yml"
#: how to use each file
NEXT = {
    RULES: "rule_files of prometheus.yml",
    SCRAPE: "scrape_config_files of prometheus.yml (2.43 and newer; else paste it)",
    DASHBOARD: "Grafana: Dashboards, New, Import",
}
READABLE = 0o644
RUNBOOK_URL = re.compile(r"https?://[\w.\[\]:-]+/[\w./~%?=&+-]*")


def install(pattern: str, *, to: str, runbooks: str, textfile: str, system: bool, check: bool, json: bool) -> list[int]:
    """Write the files, and configure the hosts' checks to write their metrics into `textfile`. Return the exit codes.

    Raises Refused if there is nothing to do, if `to` can't be a folder, or if `runbooks` is not a URL.
    """
    if not to and not textfile:
        raise Refused("say where to: --to DIR for the files, --textfile DIR for the hosts' metrics, or both.")
    if runbooks and not RUNBOOK_URL.fullmatch(runbooks):
        raise Refused(f"'{runbooks}' is no http(s) URL of a page.", where="--runbooks")
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
                f"{error.filename}: {error.strerror}.", fix="Say a folder that you may write to: --to DIR."
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
    """Configure the checks of each host to write their metrics to this folder. The timer is otherwise unchanged."""
    for member in selection.fleet.members:
        given = selection.inventory.secrets(member.host)
        member.secrets = {name: given[name] for name in ("BECOME_PASSWORD",) if name in given}
    args: dict[str, Any] = {"textfile": textfile, "system": system, "keep": True}
    name = "Write metrics where node_exporter reads them"
    task = Task(id="textfile", name=name, module="health_timer", args=args, become=system)
    return session.tasks(selection, "Monitoring", lambda host: (task,), exclusive=False, json=json, check=check)
