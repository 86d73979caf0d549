"""Mounts of our containers whose source a container could replace, or is now a link.

A start by sparkwright refuses them, or creates the folder anew. This shows them before Docker starts the container by itself, as
it does after a reboot.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.errors import Refused
from sparkwright.host.containers import containers, mount_sources
from sparkwright.host.containers.engine_words import is_ours
from sparkwright.visible import count

NAME = "mounts"
SOURCE = "decision 35: Docker follows links in the source of a bind mount at each start"


def check(host: Host) -> Iterator[Finding]:
    """Inspect the mounts of every container that sparkwright created, running or not."""
    try:
        client = host.context.docker()
        rows = [row for row in client.api.containers(all=True) if is_ours(row)]
        found = [inspected for row in rows if (inspected := containers.inspect(client, str(row["Id"]))) is not None]
    except Exception:  # refused, down or restarting: the check `docker` reports which
        yield Finding(NAME, "unknown", "Docker does not answer", source=SOURCE)
        return
    fix = f"sparkwright deploy --host {host.wanted.name}" if host.wanted.name else "sparkwright deploy"
    suspect = 0
    for container in found:
        name = str(container["Name"]).lstrip("/")
        for inner, outer in mount_sources.nested(container):
            suspect += 1
            evidence = f"{name}: {inner} lies in {outer}, where it can write, and so replace it by a link"
            yield Finding(NAME, "warning", evidence, fix, SOURCE)
        try:
            mount_sources.refuse(host.context, container)
        except Refused as error:
            suspect += 1
            yield Finding(NAME, "bad", f"{name}: {error.message}", error.fix or fix, SOURCE)
    if not suspect:
        sources = sum(len(mount_sources.of_container(entry)) for entry in found)
        evidence = f"{count(sources, 'source')} of {count(len(found), 'container')}, none below another, no link"
        yield Finding(NAME, "ok", evidence, source=SOURCE)
