"""The gateway's row in `status`, from the answer of its host."""

from __future__ import annotations

from sparkwright.app.questions.answers import GATEWAY
from sparkwright.app.questions.fan_out import Answer
from sparkwright.console.status_row import GatewayRow, Routed, Upstream
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.project.inventory.gateway import Gateway
from sparkwright.trust.shapes import built, fitted
from sparkwright.visible import first


def of(gateway: Gateway, answer: Answer) -> GatewayRow:
    """Return the row of a gateway from its host's answer. An error, or an answer without the gateway, makes it unknown."""
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
        return GatewayRow(name, port, "down", "HAProxy does not run", exit=int(Exit.FAILED))
    stand_in = found["stand_in"]
    needed = [model for model in models if not model.on_demand]
    without = [routed.model for routed in needed if not any(row.state == "up" for row in routed.servers)]
    if without:
        return GatewayRow(
            name, port, "degraded", f"no server is up: {first(without, 3)}", models, int(Exit.FAILED), stand_in
        )
    changed = f"files were changed: {first(found['changed'], 3)}" if found["changed"] else ""
    if changed or not found["verified"]:
        why = changed or "its configuration was not verified"
        return GatewayRow(name, port, "degraded", why, models, int(Exit.CHANGES), stand_in)
    return GatewayRow(name, port, "up", models=models, stand_in=stand_in)
