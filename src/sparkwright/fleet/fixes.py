"""Commands in a fix, with their `--host`: a host does not know its name in the inventory."""

from __future__ import annotations

import re

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event

#: commands for one host that do not name it yet
_COMMAND = re.compile(
    r"`invoke (restart|rollback|deploy|plan|history|cluster\.check|cluster\.inspect|logs|incident|doctor|diagnose)"
    r"(?=[` ])(?![^`]{0,200} --host )"
)
#: commands that operate a cluster as one
AS_ONE = ("restart", "rollback", "deploy", "plan", "history", "cluster.check", "cluster.inspect")


def named(text: str, host: Host) -> str:
    """Return a text with the host's name in its commands; a cluster's own name if the command is for all of it."""
    members = host.cluster.name if host.cluster else host.name
    return _COMMAND.sub(lambda found: f"{found[0]} --host {members if found[1] in AS_ONE else host.name}", text)


def of_host(event: Event, host: Host) -> Event:
    """Return an event of a host with the host's name in the commands of its message and its fix."""
    return {**event, **{key: named(event[key], host) for key in ("msg", "fix") if isinstance(event.get(key), str)}}
