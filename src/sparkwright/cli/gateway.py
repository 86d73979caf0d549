"""The `gateway.deploy`, `gateway.rollback` and `gateway.status` commands, for the gateway of a group."""

from __future__ import annotations

from typing import Any

from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.cli.deploy import RUN_OPTIONS
from sparkwright.cli.framework.command import build_command, command
from sparkwright.errors import Exit

HOST_HELP = "a group with a gateway, or the gateway's host"
#: options of a playbook, for one gateway, which has no recipe
GATEWAY_OPTIONS = tuple(
    (name, default, HOST_HELP if name == "host" else text) for name, default, text in RUN_OPTIONS if name != "recipe"
)


def _run_deploy(**arguments: Any) -> list[int]:
    from sparkwright.app.runs import gateway

    return gateway.deploy(DeployOptions(**arguments))


DEPLOY_COMMAND = build_command(
    _run_deploy,
    "deploy",
    """Deploy a group's gateway and verify each model.

    Checks the configuration in the pinned image, starts HAProxy or reloads it without interrupting streams, and generates a
    token with each model. If that fails, the last verified gateway is restored.
    """,
    GATEWAY_OPTIONS,
)


def _run_rollback(**arguments: Any) -> list[int]:
    from sparkwright.app.runs import gateway

    return gateway.rollback(DeployOptions(**arguments))


ROLLBACK_COMMAND = build_command(
    _run_rollback,
    "rollback",
    """Roll back to the previous verified gateway and its files.

    That is the last verified gateway, or the one before it if the last one is running. It is verified as after a deploy; if that
    fails, the gateway that was running is restored.
    """,
    GATEWAY_OPTIONS,
)


@command(
    help={
        "host": HOST_HELP,
        "clients": "show today's usage (UTC) of each client with its own key instead of the models: requests, errors, tokens",
        "json": "one JSON object: running, verified, models (each with requests, queued, errors, servers ...), clients",
    }
)
def status(host: str = "", clients: bool = False, json: bool = False) -> list[Exit]:
    """Show requests, queue and errors of a gateway per model.

    Exit code: 0 every model is up, or asleep because it is on demand; 1 a model or the gateway is down, or clients reject its
    certificate; 2 its files were changed, or not verified; 3 its host is unreachable.
    """
    from sparkwright.app.queries import gateway_status

    return gateway_status.show_gateway(host, json=json, clients=clients)


TASKS = {"gateway": [DEPLOY_COMMAND, ROLLBACK_COMMAND, status]}
