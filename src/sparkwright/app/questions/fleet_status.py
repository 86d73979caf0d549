"""The `status` command: query the hosts and convert their answers to rows. console/status_table.py draws the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sparkwright.app import outcome
from sparkwright.app.connect import Selection
from sparkwright.app.plans.pins import entries, lock_folder
from sparkwright.app.questions import gateway_status, host_requests
from sparkwright.console.out import say_json
from sparkwright.console.rows import Row
from sparkwright.errors import Exit, Failed, SparkwrightError
from sparkwright.fleet.member import Member, broke, hang_up
from sparkwright.health.judging.judge import EXITS
from sparkwright.health.record import checked
from sparkwright.project import lockfile, recipe
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.trust.image_name import digest_of, tagged

#: exit code of each state, whether from a health check or from now
CODES: dict[str, Exit] = {str(state): code for state, code in EXITS.items()} | {
    "up": Exit.OK,
    "in progress": Exit.INCONCLUSIVE,
}

#: states of a server that serves, and states of a member that stop its whole cluster from serving
SERVES, LOST = ("ok", "up"), ("unreachable", "down", "crash-looping")


@dataclass(frozen=True)
class Pinned:
    """The server that the user's files describe for a host."""

    recipe: str = ""
    container: str = ""
    #: digest of the image in the lock; empty if not pinned
    digest: str = ""
    #: commit of the model in the lock; empty if not pinned
    commit: str = ""
    #: id of the model
    model: str = ""


def once(selection: Selection, *, json: bool) -> list[int]:
    """Query all hosts, print the table, and return the exit codes."""
    try:
        rows = ask(selection, pinned(selection))
    finally:
        hang_up(selection.fleet.members)
    _print(rows, json=json)
    return [row.exit for row in rows] + [row.gateway.exit for row in rows if row.gateway is not None]


def again(selection: Selection, *, every_s: float, json: bool) -> int:
    """Query and print repeatedly over the same connections until Ctrl-C. This is for pipes; watch.py is for terminals."""
    wanted = pinned(selection)
    try:
        while True:
            started_s = time.monotonic()
            _print(ask(selection, wanted), json=json)
            sys.stdout.flush()
            if outcome.is_left():
                return Exit.OK
            time.sleep(max(0.0, every_s - (time.monotonic() - started_s)))
    except KeyboardInterrupt:
        return Exit.OK
    finally:
        hang_up(selection.fleet.members)


def ask(selection: Selection, wanted: Mapping[str, Pinned]) -> list[Row]:
    """Query all hosts at once and return a row for each, including hosts that can't be reached."""
    members, gateways = selection.fleet.members, carried(selection)
    answers = host_requests.everyone(members, lambda member: header(member, wanted, gateways), "status")
    rows = [row(member, answer, wanted, gateways) for member, answer in zip(members, answers, strict=True)]
    return with_lost_members(rows, {member.host.name: member.host.cluster for member in members})


def with_lost_members(rows: Sequence[Row], clusters: Mapping[str, Cluster | None]) -> list[Row]:
    """Return the rows, with serving members of a cluster changed to `unknown` while another member is down.

    An engine takes a while to notice a lost rank; until then the head's /health and last check say nothing about the cluster.

    Args:
        clusters: the cluster of each row's host, by host name.
    """
    lost = {row.host: row.state for row in rows if row.state in LOST}
    found = []
    for row in rows:
        cluster = clusters[row.host]
        gone = next((name for name in cluster.members if name in lost), "") if cluster and row.state in SERVES else ""
        if cluster and gone:
            why = f"{gone} ({cluster.place(gone)}) is {lost[gone]}: it is not known whether the cluster serves"
            row = replace(row, state="unknown", why=why, tok_per_s=None, exit=int(Exit.INCONCLUSIVE))
        found.append(row)
    return found


def carried(selection: Selection) -> dict[str, Gateway]:
    """Return the gateways by the host whose row shows them, which is the first server of a machine."""
    first = {host.machine: host.name for host in reversed(selection.hosts)}
    return {first[gateway.host]: gateway for gateway in selection.inventory.gateways.values() if gateway.host in first}


def header(member: Member, wanted: Mapping[str, Pinned], gateways: Mapping[str, Gateway]) -> dict[str, Any]:
    """Return the request to a host."""
    name = member.host.name
    return {"verb": "status", "container": wanted[name].container, "gateway": name in gateways}


def row(
    member: Member, answer: host_requests.Answer, pinned: Mapping[str, Pinned], gateways: Mapping[str, Gateway]
) -> Row:
    """Return the row for a host's answer or error, with the gateway that the row shows."""
    name = member.host.name
    found = _row(name, answer, pinned[name])
    return replace(found, gateway=gateway_status.gateway_row_of(gateways[name], answer)) if name in gateways else found


def _row(name: str, answer: host_requests.Answer, wanted: Pinned) -> Row:
    if not isinstance(answer, SparkwrightError):
        try:
            return row_of(name, answer, wanted, time.time())
        except ValueError as error:
            answer = Failed(f"its answer can't be used: {error}")
        except Exception as error:
            answer = broke(error)
    state = "unreachable" if answer.exit is Exit.UNREACHABLE else "unknown"
    why = str(answer).removeprefix("unreachable: ")
    return Row(name, state, why, wanted.recipe, error=str(answer), exit=int(answer.exit))


def row_of(name: str, event: Mapping[str, Any], wanted: Pinned, now_s: float) -> Row:
    """Convert a host's answer to a row; an overdue check makes the state unknown. Raises ValueError for an invalid answer."""
    reported = event["record"]
    record = checked(reported)
    state, why = reported["state"], reported["why"] if event["live"] else record.sentence
    if event["late"] and not event["live"]:
        state, why = "unknown", f"the check is overdue; at the last one it was {state}"
    digest = digest_of(record.serves.image)
    started_s = record.container.started_s if record.container.status == "running" else None
    behind = [
        *(["image"] if wanted.digest and digest and wanted.digest != digest else []),
        *(["model"] if wanted.commit and record.serves.commit and wanted.commit != record.serves.commit else []),
    ]
    if wanted.model and record.serves.model and wanted.model != record.serves.model:
        behind = ["recipe"]
    return Row(
        host=name,
        state=state,
        why=why,
        recipe=wanted.recipe,
        image=tagged(record.serves.image),
        digest=digest,
        engine_version=record.serves.engine_version,
        model=record.serves.model,
        commit=record.serves.commit,
        tok_per_s=record.speed.tok_per_s,
        baseline_tok_per_s=record.speed.baseline_tok_per_s,
        up_s=None if started_s is None else max(0.0, now_s - started_s),
        load_s=event.get("load_s", {}),
        memory_available_bytes=event["memory_available_bytes"],
        memory_total_bytes=event["memory_total_bytes"],
        drift=None if event["live"] or event["late"] else record.drift,
        behind=tuple(behind),
        checked_s=None if event["live"] else max(0.0, now_s - record.time_s),
        live=event["live"],
        scheduled=record.every_s > 0,
        outdated=event["outdated"],
        late=event["late"],
        busy=event["busy"],
        interrupted=event.get("interrupted", ""),
        flapping=record.flapping and not event["live"],
        sandbox=record.sandbox,
        exit=int(CODES.get(state, Exit.INCONCLUSIVE)),
    )


def pinned(selection: Selection) -> dict[str, Pinned]:
    """Return the server that the user's files describe for each host.

    A mistake in a recipe or the lock does not hide the running server.
    """
    locks: dict[Path, lockfile.Lock] = {}
    found = {}
    for host in selection.hosts:
        found[host.name] = Pinned(host.recipe or "")
        if not host.recipe:
            continue
        try:
            wanted = recipe.load(selection.project.root, host.recipe)
            folder = lock_folder(selection.project, host)
            lock = locks[folder] = locks.get(folder) or lockfile.load(folder)
        except SparkwrightError:
            continue
        known = {kind: entry or {} for kind, entry in entries(lock, wanted).items()}
        digest, commit = known["image"].get("digest", ""), known["model"].get("commit", "")
        found[host.name] = Pinned(host.recipe, wanted.file.container.name, digest, commit, wanted.file.model.id)
    return found


def _print(rows: list[Row], *, json: bool) -> None:
    if not json:
        from sparkwright.console import status_table

        return status_table.show(rows)
    for row in rows:
        reported = asdict(row)
        say_json(reported if row.error else {name: value for name, value in reported.items() if name != "error"})
    return None
