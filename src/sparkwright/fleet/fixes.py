"""Add `--host` to the commands in a host's messages, because the host does not know its name in the inventory."""

from __future__ import annotations

import re

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event

#: a command without `--host`
_COMMAND_PATTERN = re.compile(
    r"`invoke (restart|rollback|deploy|plan|history|cluster\.check|cluster\.inspect|logs|incident|doctor|diagnose|"
    r"gateway\.deploy)"
    r"(?=[` ])(?![^`]{0,200} --host )"
)
#: commands that operate on a whole cluster
CLUSTER_COMMANDS = ("restart", "rollback", "deploy", "plan", "history", "cluster.check", "cluster.inspect")


def add_host_option(text: str, host: Host) -> str:
    """Add `--host` with the host's name to the commands in a string; for commands on a whole cluster, the cluster's name."""
    target = host.cluster.name if host.cluster else host.name
    return _COMMAND_PATTERN.sub(
        lambda command: f"{command[0]} --host {target if command[1] in CLUSTER_COMMANDS else host.name}", text
    )


def add_host_to_event(event: Event, host: Host) -> Event:
    """Add `--host` to the commands in an event's message and fix."""
    texts = {key: add_host_option(event[key], host) for key in ("msg", "fix") if isinstance(event.get(key), str)}
    return {**event, **texts}
