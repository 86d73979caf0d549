"""Add to a host's messages what only the laptop knows: the host's name in commands, and where its secrets are defined."""

from __future__ import annotations

import re

from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event

#: a command without `--host`
_COMMAND_PATTERN = re.compile(
    r"`invoke (restart|rollback|deploy|plan|history|cluster\.check|cluster\.inspect|logs|incident|doctor|diagnose|"
    r"gateway\.deploy)"
    r"(?=[` ])(?![^`]{0,200} --host )"
)
#: the name of a secret, and where to define it
_SECRET_PATTERN = re.compile(rf"\b(?P<name>\w{{1,100}}) \({re.escape(secret_source.DEFAULT_LOCATION)}\)")
#: commands that operate on a whole cluster
CLUSTER_COMMANDS = ("restart", "rollback", "deploy", "plan", "history", "cluster.check", "cluster.inspect")


def add_host_option(text: str, host: Host) -> str:
    """Add `--host` with the host's name to the commands in a string; for commands on a whole cluster, the cluster's name."""
    target = host.cluster.name if host.cluster else host.name
    return _COMMAND_PATTERN.sub(
        lambda command: f"{command[0]} --host {target if command[1] in CLUSTER_COMMANDS else host.name}", text
    )


def locate_secrets(text: str, host: Host) -> str:
    """Replace the place where a secret can be defined with the one where it is, and say what its source lacks."""
    return _SECRET_PATTERN.sub(
        lambda match: f"{match['name']} ({secret_source.describe_location(match['name'], host)})", text
    )


def complete_event(event: Event, host: Host) -> Event:
    """Add what only the laptop knows to an event's message and fix."""
    texts = {
        key: locate_secrets(add_host_option(event[key], host), host)
        for key in ("msg", "fix")
        if isinstance(event.get(key), str)
    }
    return {**event, **texts}
