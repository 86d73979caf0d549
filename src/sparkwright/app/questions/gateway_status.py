"""The `gateway.status` command: requests, queue and errors of each model behind a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright import program, units
from sparkwright.app.connect import reach
from sparkwright.app.plans import gateways
from sparkwright.app.questions.host_requests import GATEWAY, Answer, ask_module
from sparkwright.app.runs.gateway import chosen as gateway_of
from sparkwright.console import grid
from sparkwright.console.out import say, say_json, say_prose
from sparkwright.console.rows import GatewayRow, Routed, Upstream
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.project.folder import Project
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.trust.shapes import built, fitted
from sparkwright.visible import count, first

KEYS = ("running", "verified", "restarted_s", "models", "clients")
USED = grid.columns(
    *(("CLIENT", 0), ("REQUESTS", 0), ("RUNNING", 0), ("REFUSED", 0), ("ERRORS", 0), ("MEAN QUEUE", 0)),
    *(("PROMPT TOKENS", 0), ("GENERATED", 0), ("OF A DAY'S", 0), ("ESTIMATED", 0)),
)
COLUMNS = grid.columns(("MODEL", 0), ("REQUESTS", 3), ("RUNNING", 0), ("QUEUED", 0), ("ERRORS", 0), ("SERVERS", 0))


def show(name: str, *, json: bool, clients: bool = False) -> list[Exit]:
    """Show a gateway. Return FAILED if it is not running or a model has no server.

    Args:
        clients: show the usage per client instead of the models.
    """
    inventory = Inventory.load(Project.here().root)
    gateway = gateway_of(inventory, name)
    reached = reach(gateway.host)
    member = reached.fleet.members[0]
    found = ask_module(reached.fleet, member, "gateway_state", {})
    up = found["running"] and all(any(row["state"] == "up" for row in model["servers"]) for model in found["models"])
    if json:
        say_json({"gateway": gateway.name, "host": gateway.host, **{key: found[key] for key in KEYS}})
    else:
        _show(gateway, gateways.base_url(inventory, gateway)[0], found, clients=clients)
    return [Exit.OK if up else Exit.FAILED]


def _show(gateway: Gateway, url: str, found: dict[str, Any], *, clients: bool) -> None:
    at = f"{gateway.name}: {url} on {gateway.host}"
    if not found["running"]:
        say_prose(f"{at}: down. `{program.name()} gateway.deploy --host {gateway.name}` starts it.")
        return
    say_prose(f"{at}: running" + ("" if found["verified"] else ", with a configuration that was not verified"))
    if again := _restarted(found):
        say_prose(f"{again}. `docker logs` of its container on {gateway.host} has the reason.")
    if not clients:
        grid.show_plain_table(COLUMNS, [_row(model) for model in found["models"]])
    elif found["clients"]:
        say("today, since 0:00 UTC:")
        grid.show_plain_table(USED, [_used(client) for client in found["clients"]])
    else:
        say_prose("no clients have keys of their own: `clients` of the gateway in groups.yml gives them.")


def _row(server: dict[str, Any]) -> list[str]:
    servers = ", ".join(f"{row['host']} {row['state']} ({row['running']})" for row in server["servers"])
    return [server["model"], *(str(server[key]) for key in ("requests", "running", "queued", "errors")), servers]


def _used(client: dict[str, Any]) -> list[str]:
    tokens, most = client["prompt_tokens"] + client["generated_tokens"], client["tokens_per_day"]
    return [
        *(str(client[key]) for key in ("client", "requests", "running", "refused", "errors")),
        f"{client['queue_ms'] / max(1, client['requests']) / 1000:.2f} s",
        *(str(client[key]) for key in ("prompt_tokens", "generated_tokens")),
        f"{100 * tokens // most}% of {most}" if most else "",
        count(client["estimated"], "request") if client["estimated"] else "",
    ]


def gateway_row_of(gateway: Gateway, answer: Answer) -> GatewayRow:
    """Return the row of a gateway from its host's answer. An error, or an answer without the gateway, means unknown."""
    name, port = gateway.name, gateway.file.port
    if isinstance(answer, SparkwrightError):
        why = "its host is unreachable" if answer.exit is Exit.UNREACHABLE else "its host gave no answer"
        return GatewayRow(name, port, "unknown", why, exit=int(Exit.INCONCLUSIVE))
    if not answer["gateway"]:
        return GatewayRow(name, port, "down", "no gateway was deployed", exit=int(Exit.FAILED))
    try:
        found = fitted(answer["gateway"], GATEWAY, "gateway")
    except ValueError as error:
        return GatewayRow(name, port, "unknown", f"its answer can't be used: {error}", exit=int(Exit.INCONCLUSIVE))
    models = [
        built(Routed, row, servers=[built(Upstream, server) for server in row["servers"]]) for row in found["models"]
    ]
    if not found["running"]:
        return GatewayRow(name, port, "down", "HAProxy is not running", exit=int(Exit.FAILED))
    needed = [model for model in models if not model.on_demand]
    without = [routed.model for routed in needed if not any(row.state == "up" for row in routed.servers)]
    if without:
        return GatewayRow(name, port, "degraded", f"no server is up: {first(without, 3)}", models, int(Exit.FAILED))
    changed = f"files were changed: {first(found['changed'], 3)}" if found["changed"] else ""
    if changed or not found["verified"]:
        why = changed or "its configuration was not verified"
        return GatewayRow(name, port, "degraded", why, models, int(Exit.CHANGES))
    return GatewayRow(name, port, "up", _restarted(found), models)


def _restarted(found: Mapping[str, Any]) -> str:
    """Return when HAProxy was started again after it was verified, as a clause; empty if it was not."""
    ago_s = found["restarted_s"]
    return (
        ""
        if ago_s is None
        else f"HAProxy started again {units.age(ago_s)} ago: it had exited, or the host was rebooted"
    )
