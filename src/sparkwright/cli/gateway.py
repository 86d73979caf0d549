"""The `gateway.deploy`, `gateway.rollback` and `gateway.status` commands, for the gateway of a group."""

from __future__ import annotations

from typing import Any

from sparkwright.app.runs.options import DeployOptions
from sparkwright.cli.deploy import RUN_OPTIONS
from sparkwright.cli.framework.command import build_command, command
from sparkwright.errors import Exit


def _run_deploy(**arguments: Any) -> list[int]:
    from sparkwright.app.runs import gateway

    return gateway.deploy(DeployOptions(**arguments))


DEPLOY_COMMAND = build_command(
    _run_deploy,
    "deploy",
    """Deploy a group's gateway, prove each model through it.

    Checks the configuration in the pinned image, starts HAProxy or has it read the new configuration without ending a stream,
    and generates a token of each model. If that fails, the last verified gateway is restored.
    """,
    RUN_OPTIONS,
)


def _run_rollback(**arguments: Any) -> list[int]:
    from sparkwright.app.runs import gateway

    return gateway.rollback(DeployOptions(**arguments))


ROLLBACK_COMMAND = build_command(
    _run_rollback,
    "rollback",
    """Return to the verified gateway before, with its files.

    To the last verified gateway; where that one runs, to the one before it. Proved like a deploy; if that fails, the gateway that
    ran is restored.
    """,
    RUN_OPTIONS,
)


@command(
    help={
        "host": "a group with a gateway, or the gateway's host",
        "clients": "what each client with a key of its own used: requests, running, refused, errors",
        "json": "one JSON object per gateway: models, each with requests, queue, errors, servers; clients",
    }
)
def status(host: str = "", clients: bool = False, json: bool = False) -> list[Exit]:
    """Show requests, queue and errors of a gateway per model.

    Exit code: 0 every model is up; 1 one is not, or the gateway is down.
    """
    from sparkwright.app.queries import gateway_status

    return gateway_status.show_gateway(host, json=json, clients=clients)


TASKS = {"gateway": [DEPLOY_COMMAND, ROLLBACK_COMMAND, status]}
