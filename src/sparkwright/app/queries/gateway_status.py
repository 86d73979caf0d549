"""The `gateway.status` command: show the requests, queue and errors of each model behind a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright import program, units
from sparkwright.app.connect import connect_hosts
from sparkwright.app.plans import gateways
from sparkwright.app.queries.host_requests import GATEWAY_SHAPE, Answer, query_module
from sparkwright.app.runs.gateway import select_gateway
from sparkwright.console import grid
from sparkwright.console.command_output import print_json_line, print_prose, print_text
from sparkwright.console.rows import GatewayRow, RoutedModel, Upstream
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.project import gateway_certificate
from sparkwright.project.folder import Project
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.trust.shapes import build_dataclass, validate
from sparkwright.visible import format_count, join_first

JSON_KEYS = ("running", "verified", "restarted_s", "certificate_error", "models", "clients")
CLIENT_COLUMNS = grid.columns(
    *(("CLIENT", 0), ("REQUESTS", 0), ("RUNNING", 4), ("REFUSED", 3), ("ERRORS", 0), ("MEAN QUEUE", 5)),
    *(("PROMPT TOKENS", 2), ("GENERATED", 1), ("OF DAILY LIMIT", 0), ("ESTIMATED", 0)),
)
MODEL_COLUMNS = grid.columns(
    ("MODEL", 0), ("REQUESTS", 3), ("RUNNING", 0), ("QUEUED", 0), ("ERRORS", 0), ("SERVERS", 0)
)


def show_gateway(name: str, *, json: bool, clients: bool = False) -> list[Exit]:
    """Show a gateway and return the exit code of its state, as in `status` (see `build_row`).

    Args:
        name: name of the gateway's group.
        clients: show each client's usage instead of the models.
    """
    inventory = Inventory.load(Project.here().root)
    gateway = select_gateway(inventory, name)
    selection = connect_hosts(gateway.host)
    member = selection.fleet.members[0]
    state = query_module(selection.fleet, member, "gateway_state", {})
    row = build_row(gateway, {"gateway": state})
    if json:
        print_json_line({"gateway": gateway.name, "host": gateway.host, **{key: state[key] for key in JSON_KEYS}})
    else:
        url = gateways.base_url(inventory, gateway)[0]
        _print_gateway(gateway, url, state, row, clients=clients)
        if mismatch := gateway_certificate.describe_name_mismatch(selection.project.root, gateway, url):
            print_prose(mismatch)
    return [Exit(row.exit)]


def _print_gateway(gateway: Gateway, url: str, state: dict[str, Any], row: GatewayRow, *, clients: bool) -> None:
    title = f"{gateway.name}: {url} on {gateway.host}"
    if not state["running"]:
        print_prose(f"{title}: down. `{program.name()} gateway.deploy --host {gateway.name}` starts it.")
        return
    print_prose(f"{title}: running" + (f", {row.why}" if row.state == "degraded" else ""))
    if restart_note := _describe_restart(state):
        print_prose(f"{restart_note}. `docker logs` of its container on {gateway.host} shows why.")
    if not clients:
        grid.print_table(MODEL_COLUMNS, [_model_row(model) for model in state["models"]])
    elif state["clients"]:
        print_text("Usage since 0:00 UTC:")
        grid.print_table(CLIENT_COLUMNS, [_client_row(client) for client in state["clients"]])
    else:
        print_prose("No client has a key: add `clients` to the gateway in groups.yml.")


def _model_row(model: dict[str, Any]) -> list[str]:
    servers = ", ".join(f"{row['host']} {row['state']} ({row['running']})" for row in model["servers"])
    return [model["model"], *(str(model[key]) for key in ("requests", "running", "queued", "errors")), servers]


def _client_row(client: dict[str, Any]) -> list[str]:
    tokens, daily_limit = client["prompt_tokens"] + client["generated_tokens"], client["tokens_per_day"]
    return [
        *(str(client[key]) for key in ("client", "requests", "running", "refused", "errors")),
        f"{client['queue_ms'] / max(1, client['requests']) / 1000:.2f} s",
        *(str(client[key]) for key in ("prompt_tokens", "generated_tokens")),
        f"{100 * tokens // daily_limit}% of {daily_limit}" if daily_limit else "",
        format_count(client["estimated"], "request") if client["estimated"] else "",
    ]


def build_row(gateway: Gateway, answer: Answer) -> GatewayRow:
    """Return a gateway's row from its host's answer to a `status` request, or from the error."""
    name, port = gateway.name, gateway.file.port
    if isinstance(answer, SparkwrightError):
        reason = "its host is unreachable" if answer.exit is Exit.UNREACHABLE else "its host could not be queried"
        return GatewayRow(name, port, "unknown", reason, exit=int(Exit.INCONCLUSIVE))
    if not answer["gateway"]:
        return GatewayRow(name, port, "down", "no gateway has been deployed", exit=int(Exit.FAILED))
    try:
        state = validate(answer["gateway"], GATEWAY_SHAPE, "gateway")
    except ValueError as error:
        return GatewayRow(name, port, "unknown", f"its answer can't be used: {error}", exit=int(Exit.INCONCLUSIVE))
    models = [
        build_dataclass(RoutedModel, row, servers=[build_dataclass(Upstream, server) for server in row["servers"]])
        for row in state["models"]
    ]
    if not state["running"]:
        return GatewayRow(name, port, "down", "HAProxy is not running", exit=int(Exit.FAILED))
    if state["certificate_error"]:
        return GatewayRow(
            name, port, "degraded", f"its certificate {state['certificate_error']}", models, int(Exit.FAILED)
        )
    if unserved_models := find_unserved_models(state):
        return GatewayRow(
            name, port, "degraded", f"no server is up: {join_first(unserved_models, 3)}", models, int(Exit.FAILED)
        )
    if state["changed"] or not state["verified"]:
        change_note = f"files were changed: {join_first(state['changed'], 3)}" if state["changed"] else ""
        reason = change_note or "its configuration has not been verified"
        return GatewayRow(name, port, "degraded", reason, models, int(Exit.CHANGES))
    return GatewayRow(name, port, "up", _describe_restart(state), models)


def find_unserved_models(state: Mapping[str, Any]) -> list[str]:
    """Return the models without a server that is up, except on-demand models, whose servers may be asleep."""
    return [
        model["model"]
        for model in state["models"]
        if not model["on_demand"] and not any(server["state"] == "up" for server in model["servers"])
    ]


def _describe_restart(state: Mapping[str, Any]) -> str:
    """Describe the restart of HAProxy since it was verified; empty if there was none."""
    restart_age_s = state["restarted_s"]
    if restart_age_s is None:
        return ""
    return f"HAProxy restarted {units.format_age(restart_age_s)} ago: it had exited, or the host was rebooted"
