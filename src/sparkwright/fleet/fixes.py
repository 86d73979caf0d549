"""Commands in a fix, with the host that they are for: a host does not know what it is called here."""

from __future__ import annotations

import re

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event

#: commands that are for one host, where they don't name it yet
_COMMAND = re.compile(
    r"`invoke (restart|rollback|deploy|plan|history|cluster\.check|cluster\.inspect|logs|incident|doctor|diagnose)"
    r"(?=[` ])(?![^`]{0,200} --host )"
)
#: of a cluster: operated as one
AS_ONE = ("restart", "rollback", "deploy", "plan", "history", "cluster.check", "cluster.inspect")


def named(text: str, host: Host) -> str:
    """A text with the host in its commands, as it is called in the project; a cluster by its own name where it is one."""
    members = host.cluster.name if host.cluster else host.name
    return _COMMAND.sub(lambda found: f"{found[0]} --host {members if found[1] in AS_ONE else host.name}", text)


def of_host(event: Event, host: Host) -> Event:
    """An event of a host with the host in the commands of its message and its fix."""
    return {**event, **{key: named(event[key], host) for key in ("msg", "fix") if isinstance(event.get(key), str)}}
