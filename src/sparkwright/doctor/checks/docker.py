"""Checks of Docker: access to it, the mounts of our containers, and the platform of the image."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import FIXES, Finding
from sparkwright.doctor.host import Host
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host.containers import containers, mount_sources
from sparkwright.host.containers.engine_words import is_ours
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.runs.context import SocketDenied
from sparkwright.visible import count

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


# Mounts of our containers whose source a container could replace, or is now a link.
#
# A start by sparkwright refuses them, or creates the folder anew. This shows them before Docker starts the container by itself,
# as it does after a reboot.

MOUNTS_NAME = "mounts"
SOURCE = "decision 35: Docker follows links in the source of a bind mount at each start"


def check_mounts(host: Host) -> Iterator[Finding]:
    """Inspect the mounts of every container that sparkwright created, running or not."""
    try:
        client = host.context.docker()
        rows = [row for row in client.api.containers(all=True) if is_ours(row)]
        found = [inspected for row in rows if (inspected := containers.inspect(client, str(row["Id"]))) is not None]
    except Exception:  # refused, down or restarting: the check `docker` reports which
        yield Finding(MOUNTS_NAME, "unknown", "Docker does not answer", source=SOURCE)
        return
    fix = f"sparkwright deploy --host {host.wanted.name}" if host.wanted.name else "sparkwright deploy"
    suspect = 0
    for container in found:
        name = str(container["Name"]).lstrip("/")
        for inner, outer in mount_sources.nested(container):
            suspect += 1
            evidence = f"{name}: {inner} lies in {outer}, where it can write, and so replace it by a link"
            yield Finding(MOUNTS_NAME, "warning", evidence, fix, SOURCE)
        try:
            mount_sources.refuse(host.context, container)
        except Refused as error:
            suspect += 1
            yield Finding(MOUNTS_NAME, "bad", f"{name}: {error.message}", error.fix or fix, SOURCE)
    if not suspect:
        sources = sum(len(mount_sources.of_container(entry)) for entry in found)
        evidence = f"{count(sources, 'source')} of {count(len(found), 'container')}, none below another, no link"
        yield Finding(MOUNTS_NAME, "ok", evidence, source=SOURCE)


PLATFORM_NAME = "image platform"


def check_platform(host: Host) -> Iterator[Finding]:
    here, wanted, source = machine_platform(host.context.machine), host.wanted, known.PLATFORM.source
    if not wanted.image:
        yield Finding(PLATFORM_NAME, "unknown", "the host has no recipe, so no image to check")
    elif not wanted.platforms:
        evidence = f"the platforms of {wanted.image} are not in spark.lock"
        yield Finding(PLATFORM_NAME, "unknown", evidence, f"invoke lock --host {wanted.name or 'HOST'}", source)
    elif here in wanted.platforms:
        yield Finding(PLATFORM_NAME, "ok", f"{wanted.image} has {here}", source=source)
    else:
        evidence = f"{wanted.image} has {', '.join(wanted.platforms)}, not {here}: {known.PLATFORM.says}"
        yield Finding(PLATFORM_NAME, "bad", evidence, "docker buildx imagetools inspect " + wanted.image, source)
