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
from sparkwright.console.rows import SERVING_STATES, HostStatus
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import Member, close_links
from sparkwright.health.judging.judge import EXIT_CODES
from sparkwright.health.record import parse_foreign_record
from sparkwright.project import lockfile, recipe
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.trust.image_name import digest_of, without_digest

#: exit code of each state that a health check or a snapshot reports
STATE_EXIT_CODES: dict[str, Exit] = {str(state): code for state, code in EXIT_CODES.items()} | {
    "up": Exit.OK,
    "in progress": Exit.INCONCLUSIVE,
}

#: states of a cluster's member in which the whole cluster stops serving
OUTAGE_STATES = ("unreachable", "down", "crash-looping")


@dataclass(frozen=True)
class IntendedServer:
    """The server that a host should run, according to its recipe and the lock."""

    recipe: str = ""
    #: name of the container
    container: str = ""
    #: pinned digest of the image; empty if not pinned
    digest: str = ""
    #: pinned commit of the model; empty if not pinned
    commit: str = ""
    #: id of the model
    model: str = ""


def show_once(selection: Selection, *, json: bool) -> list[int]:
    """Query all hosts once, print the table, and return the exit codes of the servers and gateways."""
    try:
        rows = query_rows(selection, intended_servers(selection))
    finally:
        close_links(selection.fleet.members)
    _print_rows(rows, json=json)
    return [row.exit for row in rows] + [row.gateway.exit for row in rows if row.gateway is not None]


def show_repeatedly(selection: Selection, *, interval_s: float, json: bool) -> int:
    """Query the hosts repeatedly and print each round's rows, until Ctrl-C. watch.py does this on a terminal."""
    intended_by_host = intended_servers(selection)
    try:
        while True:
            started_s = time.monotonic()
            _print_rows(query_rows(selection, intended_by_host), json=json)
            sys.stdout.flush()
            if outcome.is_reader_gone():
                return Exit.OK
            time.sleep(max(0.0, interval_s - (time.monotonic() - started_s)))
    except KeyboardInterrupt:
        return Exit.OK
    finally:
        close_links(selection.fleet.members)


def query_rows(selection: Selection, intended_by_host: Mapping[str, IntendedServer]) -> list[HostStatus]:
    """Query all hosts in parallel and return a row for each, including unreachable hosts."""
    members, gateways = selection.fleet.members, gateways_by_row(selection)
    answers = host_requests.query_members(
        members, lambda member: status_request(member, intended_by_host, gateways), "status"
    )
    rows = [
        build_row(member, answer, intended_by_host, gateways) for member, answer in zip(members, answers, strict=True)
    ]
    return mark_cluster_outages(rows, {member.host.name: member.host.cluster for member in members})


def mark_cluster_outages(rows: Sequence[HostStatus], clusters: Mapping[str, Cluster | None]) -> list[HostStatus]:
    """Return the rows, with the state `unknown` for members that seem to serve although another member of their cluster is down.

    An engine detects the outage of a rank only after a while. Until then, the head's /health and last check do not show it.

    Args:
        clusters: each host's cluster, by host name; None for a host outside clusters.
    """
    outage_states = {row.host: row.state for row in rows if row.state in OUTAGE_STATES}

    def mark_outage(row: HostStatus) -> HostStatus:
        cluster = clusters[row.host]
        if cluster is None or row.state not in SERVING_STATES:
            return row
        failed_member = next((name for name in cluster.members if name in outage_states), None)
        if failed_member is None:
            return row
        outage = f"{failed_member} ({cluster.describe_rank(failed_member)}) is {outage_states[failed_member]}"
        reason = f"{outage}: it is not known whether the cluster is serving"
        return replace(row, state="unknown", why=reason, tok_per_s=None, exit=int(Exit.INCONCLUSIVE))

    return list(map(mark_outage, rows))


def gateways_by_row(selection: Selection) -> dict[str, Gateway]:
    """Return the gateways by the name of the host whose row shows them: the first server on the gateway's machine."""
    first_hosts = {host.machine: host.name for host in reversed(selection.hosts)}
    return {
        first_hosts[gateway.host]: gateway
        for gateway in selection.inventory.gateways.values()
        if gateway.host in first_hosts
    }


def status_request(
    member: Member, intended_by_host: Mapping[str, IntendedServer], gateways: Mapping[str, Gateway]
) -> dict[str, Any]:
    """Return a host's `status` request, which includes the gateway if the host's row shows one."""
    name = member.host.name
    return {"verb": "status", "container": intended_by_host[name].container, "gateway": name in gateways}


def build_row(
    member: Member,
    answer: host_requests.Answer,
    intended_by_host: Mapping[str, IntendedServer],
    gateways: Mapping[str, Gateway],
) -> HostStatus:
    """Return a host's row from its answer or error, including its gateway if the row shows one."""
    name = member.host.name
    row = host_requests.parse_answer(answer, lambda event: parse_row(name, event, intended_by_host[name]))
    if isinstance(row, SparkwrightError):
        state = "unreachable" if row.exit is Exit.UNREACHABLE else "unknown"
        reason = str(row).removeprefix("unreachable: ")
        row = HostStatus(name, state, reason, intended_by_host[name].recipe, error=str(row), exit=int(row.exit))
    return replace(row, gateway=gateway_status.build_row(gateways[name], answer)) if name in gateways else row


def parse_row(name: str, event: Mapping[str, Any], intended_server: IntendedServer) -> HostStatus:
    """Convert a `status` event to a row; an overdue check makes the state unknown. Raises ValueError for an invalid event."""
    record_data, now_s = event["record"], event.get("now_s") or time.time()
    record = parse_foreign_record(record_data)
    state, reason = record_data["state"], record_data["why"] if event["live"] else record.sentence
    if event["late"] and not event["live"]:
        state, reason = "unknown", f"the check is overdue; at the last one it was {state}"
    digest = digest_of(record.serves.image)
    started_s = record.container.started_s if record.container.status == "running" else None
    outdated_parts = [
        *(["image"] if intended_server.digest and digest and intended_server.digest != digest else []),
        *(
            ["model"]
            if intended_server.commit and record.serves.commit and intended_server.commit != record.serves.commit
            else []
        ),
    ]
    if intended_server.model and record.serves.model and intended_server.model != record.serves.model:
        outdated_parts = ["recipe"]
    return HostStatus(
        host=name,
        state=state,
        why=reason,
        recipe=intended_server.recipe,
        image=without_digest(record.serves.image),
        digest=digest,
        engine_version=record.serves.engine_version,
        model=record.serves.model,
        commit=record.serves.commit,
        tok_per_s=record.speed.tok_per_s,
        baseline_tok_per_s=record.speed.baseline_tok_per_s,
        up_s=None if started_s is None or started_s > now_s else now_s - started_s,
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
    """Return the server that each host should run, by host name; only the recipe's name if a file is invalid."""
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


def _print_rows(rows: list[HostStatus], *, json: bool) -> None:
    if not json:
        from sparkwright.console import status_table

        status_table.print_table(rows)
        return
    for row in rows:
        fields = asdict(row)
        print_json_line(fields if row.error else {name: value for name, value in fields.items() if name != "error"})
