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
from sparkwright.app.plans.pins import lock_entries, lock_folder
from sparkwright.app.queries import gateway_status, host_requests
from sparkwright.console.command_output import print_json_line
from sparkwright.console.rows import Row
from sparkwright.errors import Exit, Failed, SparkwrightError
from sparkwright.fleet.member import Member, close_links, convert_error
from sparkwright.health.judging.judge import EXIT_CODES
from sparkwright.health.record import parse_foreign_record
from sparkwright.project import lockfile, recipe
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.trust.image_name import digest_of, without_digest

#: exit code of each state, whether from a health check or from now
STATE_EXIT_CODES: dict[str, Exit] = {str(state): code for state, code in EXIT_CODES.items()} | {
    "up": Exit.OK,
    "in progress": Exit.INCONCLUSIVE,
}

#: states of a server that serves, and states of a member that stop its whole cluster from serving
SERVING_STATES, LOST_STATES = ("ok", "up"), ("unreachable", "down", "crash-looping")


@dataclass(frozen=True)
class IntendedServer:
    """The server that the user's files describe for a host."""

    recipe: str = ""
    container: str = ""
    #: digest of the image in the lock; empty if not pinned
    digest: str = ""
    #: commit of the model in the lock; empty if not pinned
    commit: str = ""
    #: id of the model
    model: str = ""


def show_once(selection: Selection, *, json: bool) -> list[int]:
    """Query all hosts, print the table, and return the exit codes."""
    try:
        rows = query_rows(selection, intended_servers(selection))
    finally:
        close_links(selection.fleet.members)
    _print_rows(rows, json=json)
    return [row.exit for row in rows] + [row.gateway.exit for row in rows if row.gateway is not None]


def show_repeatedly(selection: Selection, *, every_s: float, json: bool) -> int:
    """Query and print repeatedly over the same connections until Ctrl-C. This is for pipes; watch.py is for terminals."""
    intended = intended_servers(selection)
    try:
        while True:
            started_s = time.monotonic()
            _print_rows(query_rows(selection, intended), json=json)
            sys.stdout.flush()
            if outcome.is_reader_gone():
                return Exit.OK
            time.sleep(max(0.0, every_s - (time.monotonic() - started_s)))
    except KeyboardInterrupt:
        return Exit.OK
    finally:
        close_links(selection.fleet.members)


def query_rows(selection: Selection, intended: Mapping[str, IntendedServer]) -> list[Row]:
    """Query all hosts at once and return a row for each, including hosts that can't be reached."""
    members, gateways = selection.fleet.members, gateways_by_row(selection)
    answers = host_requests.query_members(members, lambda member: status_request(member, intended, gateways), "status")
    rows = [build_row(member, answer, intended, gateways) for member, answer in zip(members, answers, strict=True)]
    return mark_lost_members(rows, {member.host.name: member.host.cluster for member in members})


def mark_lost_members(rows: Sequence[Row], clusters: Mapping[str, Cluster | None]) -> list[Row]:
    """Return the rows, with serving members of a cluster changed to `unknown` while another member is down.

    An engine takes a while to notice a lost rank; until then the head's /health and last check say nothing about the cluster.

    Args:
        clusters: the cluster of each row's host, by host name.
    """
    lost_states = {row.host: row.state for row in rows if row.state in LOST_STATES}
    marked = []
    for row in rows:
        cluster = clusters[row.host]
        lost_member = (
            next((name for name in cluster.members if name in lost_states), "")
            if cluster and row.state in SERVING_STATES
            else ""
        )
        if cluster and lost_member:
            why = (
                f"{lost_member} ({cluster.place(lost_member)}) is {lost_states[lost_member]}: it is not known whether "
                "the cluster serves"
            )
            row = replace(row, state="unknown", why=why, tok_per_s=None, exit=int(Exit.INCONCLUSIVE))
        marked.append(row)
    return marked


def gateways_by_row(selection: Selection) -> dict[str, Gateway]:
    """Return the gateways by the host whose row shows them, which is the first server of a machine."""
    first_hosts = {host.machine: host.name for host in reversed(selection.hosts)}
    return {
        first_hosts[gateway.host]: gateway
        for gateway in selection.inventory.gateways.values()
        if gateway.host in first_hosts
    }


def status_request(
    member: Member, intended: Mapping[str, IntendedServer], gateways: Mapping[str, Gateway]
) -> dict[str, Any]:
    """Return the request to a host."""
    name = member.host.name
    return {"verb": "status", "container": intended[name].container, "gateway": name in gateways}


def build_row(
    member: Member,
    answer: host_requests.Answer,
    intended: Mapping[str, IntendedServer],
    gateways: Mapping[str, Gateway],
) -> Row:
    """Return the row for a host's answer or error, with the gateway that the row shows."""
    name = member.host.name
    server_row = _server_row(name, answer, intended[name])
    return (
        replace(server_row, gateway=gateway_status.build_row(gateways[name], answer))
        if name in gateways
        else server_row
    )


def _server_row(name: str, answer: host_requests.Answer, intended: IntendedServer) -> Row:
    if not isinstance(answer, SparkwrightError):
        try:
            return parse_row(name, answer, intended, time.time())
        except ValueError as error:
            answer = Failed(f"its answer can't be used: {error}")
        except Exception as error:
            answer = convert_error(error)
    state = "unreachable" if answer.exit is Exit.UNREACHABLE else "unknown"
    reason = str(answer).removeprefix("unreachable: ")
    return Row(name, state, reason, intended.recipe, error=str(answer), exit=int(answer.exit))


def parse_row(name: str, event: Mapping[str, Any], intended: IntendedServer, now_s: float) -> Row:
    """Convert a host's answer to a row; an overdue check makes the state unknown. Raises ValueError for an invalid answer."""
    record_data = event["record"]
    record = parse_foreign_record(record_data)
    state, why = record_data["state"], record_data["why"] if event["live"] else record.sentence
    if event["late"] and not event["live"]:
        state, why = "unknown", f"the check is overdue; at the last one it was {state}"
    digest = digest_of(record.serves.image)
    started_s = record.container.started_s if record.container.status == "running" else None
    outdated_parts = [
        *(["image"] if intended.digest and digest and intended.digest != digest else []),
        *(["model"] if intended.commit and record.serves.commit and intended.commit != record.serves.commit else []),
    ]
    if intended.model and record.serves.model and intended.model != record.serves.model:
        outdated_parts = ["recipe"]
    return Row(
        host=name,
        state=state,
        why=why,
        recipe=intended.recipe,
        image=without_digest(record.serves.image),
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
        behind=tuple(outdated_parts),
        checked_s=None if event["live"] else max(0.0, now_s - record.time_s),
        live=event["live"],
        scheduled=record.every_s > 0,
        outdated=event["outdated"],
        late=event["late"],
        busy=event["busy"],
        interrupted=event.get("interrupted", ""),
        flapping=record.flapping and not event["live"],
        sandbox=record.sandbox,
        exit=int(STATE_EXIT_CODES.get(state, Exit.INCONCLUSIVE)),
    )


def intended_servers(selection: Selection) -> dict[str, IntendedServer]:
    """Return the server that the user's files describe for each host.

    A mistake in a recipe or the lock does not hide the running server.
    """
    locks: dict[Path, lockfile.Lock] = {}
    servers = {}
    for host in selection.hosts:
        servers[host.name] = IntendedServer(host.recipe or "")
        if not host.recipe:
            continue
        try:
            host_recipe = recipe.load(selection.project.root, host.recipe)
            folder = lock_folder(selection.project, host)
            lock = locks[folder] = locks.get(folder) or lockfile.load(folder)
        except SparkwrightError:
            continue
        pins = {kind: entry or {} for kind, entry in lock_entries(lock, host_recipe).items()}
        digest, commit = pins["image"].get("digest", ""), pins["model"].get("commit", "")
        servers[host.name] = IntendedServer(
            host.recipe, host_recipe.file.container.name, digest, commit, host_recipe.file.model.id
        )
    return servers


def _print_rows(rows: list[Row], *, json: bool) -> None:
    if not json:
        from sparkwright.console import status_table

        return status_table.print_table(rows)
    for row in rows:
        fields = asdict(row)
        print_json_line(fields if row.error else {name: value for name, value in fields.items() if name != "error"})
    return None
