"""Docker: is this login allowed to use it, and does it start at boot."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.fixes import FIXES
from sparkwright.doctor.host import Host
from sparkwright.errors import SparkwrightError
from sparkwright.host.runs.context import SocketDenied

NAME = "docker"
GROUP = "docker"


def check(host: Host) -> Iterator[Finding]:
    gid, members = _group(host)
    member = host.user in members
    live = gid in _live_groups(host)
    try:
        version = host.context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield _refused(host, error, gid, member=member, live=live)
    else:
        yield Finding(NAME, "ok", f"Docker {version} answers {host.user}", source=known.DOCKER_GROUP.source)
    answer = host.output("systemctl", "is-enabled", "docker.service", "docker.socket")
    states = answer.out.split() if answer is not None else []
    if "disabled" in states and "enabled" not in states:
        fix = "docker at boot"
        evidence = "docker.service is disabled: no server starts after a reboot"
        yield Finding("docker at boot", "bad", evidence, FIXES[fix].manual_command(host.user), "systemctl(1)", fix)
    elif "enabled" in states:
        yield Finding("docker at boot", "ok", "Docker starts at boot", source="systemctl(1)")
    else:
        yield Finding("docker at boot", "unknown", "unknown whether Docker starts at boot: no answer from systemd")


def _refused(host: Host, error: SparkwrightError, gid: str, *, member: bool, live: bool) -> Finding:
    """Return the finding for a Docker that does not answer: no permission to use it, or it is not running."""
    if not isinstance(error, SocketDenied) or live:
        return Finding(NAME, "bad", error.message, error.fix.partition("`")[2].partition("`")[0], "dockerd(8)")
    if member:
        evidence = f"{host.user} is in the group {GROUP}, but this login session is not: {known.LIVE_LOGIN.says}"
        close = f"ssh -O exit {host.wanted.name or 'HOST'}"
        return Finding(NAME, "bad", evidence, close, known.LIVE_LOGIN.source)
    if not gid:
        return Finding(NAME, "bad", f"there is no group {GROUP}", "getent group docker", known.DOCKER_GROUP.source)
    evidence = f"no permission on the Docker socket: {host.user} is not in the group {GROUP}"
    fix = "docker group"
    return Finding(NAME, "bad", evidence, FIXES[fix].manual_command(host.user), known.DOCKER_GROUP.source, fix)


def _group(host: Host) -> tuple[str, list[str]]:
    """Return the group's number and members, as a new login would have them."""
    rows = [row for row in host.rows("/etc/group") if len(row) == 4 and row[0] == GROUP]
    return (rows[0][2], rows[0][3].split(",")) if rows else ("", [])


def _live_groups(host: Host) -> list[str]:
    """Return the groups of this very login, by number."""
    return next((row[1].split() for row in host.rows("/proc/self/status") if row[0] == "Groups"), [])
