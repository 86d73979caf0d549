"""Adding `--host` to the commands in a fix, because a host does not know its name in the inventory."""

from __future__ import annotations

import re

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event

#: a command for a host that does not name the host yet
_COMMAND = re.compile(
    r"`invoke (restart|rollback|deploy|plan|history|cluster\.check|cluster\.inspect|logs|incident|doctor|diagnose)"
    r"(?=[` ])(?![^`]{0,200} --host )"
)
#: commands that operate on a whole cluster
CLUSTER_COMMANDS = ("restart", "rollback", "deploy", "plan", "history", "cluster.check", "cluster.inspect")


def add_host_option(text: str, host: Host) -> str:
    """Return a text with the host's name added to its commands, or the cluster's name if a command is for the whole cluster."""
    cluster_name = host.cluster.name if host.cluster else host.name
    return _COMMAND.sub(
        lambda found: f"{found[0]} --host {cluster_name if found[1] in CLUSTER_COMMANDS else host.name}", text
    )


def add_host_to_event(event: Event, host: Host) -> Event:
    """Return a host's event with the host's name added to the commands in its message and fix."""
    return {
        **event,
        **{key: add_host_option(event[key], host) for key in ("msg", "fix") if isinstance(event.get(key), str)},
    }
