"""The port that the recipe publishes: free, or our own server's."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, port_forwarders

NAME = "port"


def check(host: Host) -> Iterator[Finding]:
    wanted = host.wanted
    if not wanted.port and wanted.recipe:
        yield Finding(NAME, "ok", "none is needed: the head of the cluster answers requests")
        return
    if not wanted.port:
        yield Finding(NAME, "unknown", "the host has no recipe, so no port to check")
        return
    try:
        client = host.context.docker()
        holder = containers.who_listens(client, wanted.port)
    except SparkwrightError:
        yield Finding(NAME, "unknown", f"unknown what uses port {wanted.port}: no answer from Docker")
        return
    if not holder:
        yield Finding(NAME, "ok", f"port {wanted.port} is free")
    elif holder == f"container {wanted.container}":
        yield Finding(NAME, "ok", f"port {wanted.port} is used by this server")
    else:
        kind, _, name = holder.partition(" ")
        fix = f"docker stop {name}" if kind == "container" else f"sudo ss -tlnp 'sport = :{wanted.port}'"
        if holder.startswith(port_forwarders.TITLE):
            fix = port_forwarders.COMMAND
        yield Finding(NAME, "bad", f"port {wanted.port} is in use by {holder}", fix, "docker run --publish")
