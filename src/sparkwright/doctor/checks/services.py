"""Checks of Docker and other programs: Ollama, other scripts that start the server, and the runtime for `become`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sparkwright.doctor import known
from sparkwright.doctor.host import FIXES, Finding, Host, Wanted
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host import ollama, root_runtime
from sparkwright.host.containers import container_labels, containers, mount_sources
from sparkwright.host.containers.inspection import is_ours
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.runs.context import SocketDenied
from sparkwright.shell import quote
from sparkwright.trust import bounds
from sparkwright.visible import count, one_line

DOCKER_NAME = "docker"
GROUP = "docker"


def check_docker(host: Host) -> Iterator[Finding]:
    gid, members = _group(host)
    member = host.user in members
    live = gid in _live_groups(host)
    try:
        version = host.context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield _refused(host, error, gid, member=member, live=live)
    else:
        yield Finding(DOCKER_NAME, "ok", f"Docker {version} answers {host.user}", source=known.DOCKER_GROUP.source)
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
    """Return the finding for a Docker Engine that can't be used: there is no permission, or it is not running."""
    if not isinstance(error, SocketDenied) or live:
        return Finding(DOCKER_NAME, "bad", error.message, error.fix.partition("`")[2].partition("`")[0], "dockerd(8)")
    if member:
        evidence = f"{host.user} is in the group {GROUP}, but this login session is not: {known.LIVE_LOGIN.says}"
        close = f"ssh -O exit {host.wanted.name or 'HOST'}"
        return Finding(DOCKER_NAME, "bad", evidence, close, known.LIVE_LOGIN.source)
    if not gid:
        return Finding(
            DOCKER_NAME, "bad", f"there is no group {GROUP}", "getent group docker", known.DOCKER_GROUP.source
        )
    evidence = f"no permission on the Docker socket: {host.user} is not in the group {GROUP}"
    fix = "docker group"
    return Finding(DOCKER_NAME, "bad", evidence, FIXES[fix].manual_command(host.user), known.DOCKER_GROUP.source, fix)


def _group(host: Host) -> tuple[str, list[str]]:
    """Return the group's number and its members, as of a new login."""
    rows = [row for row in host.rows("/etc/group") if len(row) == 4 and row[0] == GROUP]
    return (rows[0][2], rows[0][3].split(",")) if rows else ("", [])


def _live_groups(host: Host) -> list[str]:
    """Return the numbers of the current login's groups."""
    return next((row[1].split() for row in host.rows("/proc/self/status") if row[0] == "Groups"), [])


# Mounts of our containers whose source is a link or could be replaced by a container.
#
# When sparkwright starts a container, it refuses them or recreates the folder. This check reveals them before Docker starts
# the container by itself, as it does after a reboot.

MOUNTS_NAME = "mounts"
DOCKER_SOURCE = "decision 35: Docker follows links in the source of a bind mount at each start"


def check_mounts(host: Host) -> Iterator[Finding]:
    """Check the mounts of all containers that sparkwright created, even if they are not running."""
    found = _own_containers(host)
    if found is None:
        yield Finding(MOUNTS_NAME, "unknown", "Docker does not answer", source=DOCKER_SOURCE)
        return
    fix = _deploy(host)
    suspect = 0
    for container in found:
        name = str(container["Name"]).lstrip("/")
        for inner, outer in mount_sources.nested(container):
            suspect += 1
            evidence = f"{name}: {inner} is inside {outer}, which it can write to, so it could replace it with a link"
            yield Finding(MOUNTS_NAME, "warning", evidence, fix, DOCKER_SOURCE)
        try:
            mount_sources.refuse(host.context, container)
        except Refused as error:
            suspect += 1
            yield Finding(MOUNTS_NAME, "bad", f"{name}: {error.message}", error.fix or fix, DOCKER_SOURCE)
    if not suspect:
        sources = sum(len(mount_sources.of_container(entry)) for entry in found)
        evidence = f"{count(sources, 'source')} of {count(len(found), 'container')}, none below another, no link"
        yield Finding(MOUNTS_NAME, "ok", evidence, source=DOCKER_SOURCE)


def _own_containers(host: Host) -> list[dict[str, Any]] | None:
    """Return the inspection of the containers that sparkwright created, or None if Docker does not answer."""
    try:
        client = host.context.docker()
        rows = [row for row in client.api.containers(all=True) if is_ours(row)]
        return [inspected for row in rows if (inspected := containers.inspect(client, str(row["Id"]))) is not None]
    except Exception:  # it is refused, down or restarting; the check `docker` reports the reason
        return None


def _deploy(host: Host) -> str:
    return f"sparkwright deploy --host {host.wanted.name}" if host.wanted.name else "sparkwright deploy"


CONTAINERS_NAME = "containers"
CONTAINERS_SOURCE = "decision 61: a new container is created before the server is stopped"


def check_containers(host: Host) -> Iterator[Finding]:
    """Check for containers that were created to replace a server but never started."""
    found = _own_containers(host)
    if found is None:
        yield Finding(CONTAINERS_NAME, "unknown", "Docker does not answer", source=CONTAINERS_SOURCE)
        return
    left = [container for container in found if container_labels.never_started(host.context, container)]
    for container in left:
        evidence = f"{container_labels.holder(host.context, container)}; it takes no memory"
        yield Finding(CONTAINERS_NAME, "warning", evidence, _deploy(host), CONTAINERS_SOURCE)
    if not left:
        evidence = f"{count(len(found), 'container')} of sparkwright, none of them left by a run that was cut off"
        yield Finding(CONTAINERS_NAME, "ok", evidence, source=CONTAINERS_SOURCE)


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


OLLAMA_NAME = "Ollama"


def check_ollama(host: Host) -> Iterator[Finding]:
    source, name = known.OLLAMA.source, host.wanted.name or "HOST"
    seen = ollama.inspect(host.context, timeout_s=2)
    if seen.hanging:
        evidence = f"{', '.join(map(str, seen.hanging))} does not answer: it is loading a model or hung"
        yield Finding(OLLAMA_NAME, "warning", evidence, f"invoke ollama.ps --host {name}", source)
    elif not seen.present:
        yield Finding(OLLAMA_NAME, "ok", "Ollama is not running", source=source)
        return
    elif seen.held:
        models = ", ".join(f"{usage.model.name} {usage.model.size_text}" for usage in seen.held)
        does = {"unload": "a deploy unloads them", "stop": "a deploy stops it"}.get(host.wanted.ollama, "")
        evidence = f"{models} in memory: {known.OLLAMA.says}{f' ({does})' if does else ''}"
        yield Finding(OLLAMA_NAME, "warning", evidence, f"invoke ollama.unload --host {name}", source)
    else:
        yield Finding(OLLAMA_NAME, "ok", f"{', '.join(map(str, seen.present))}, no model loaded", source=source)
    yield from _open(host)


def _open(host: Host) -> Iterator[Finding]:
    """Check the address, because a service that listens on all addresses lets anyone load models into the engine's memory."""
    words = (host.printed("systemctl", "show", ollama.SERVICE, "-p", "Environment", "--value") or "").split()
    host_is = next((word.strip('"').partition("=")[2] for word in words if "OLLAMA_HOST=" in word), "")
    if "0.0.0.0" in host_is or "[::]" in host_is:
        evidence = f"{ollama.SERVICE} listens on every address (OLLAMA_HOST={host_is}): {known.OLLAMA_OPEN.says}"
        yield Finding("Ollama's address", "warning", evidence, "sudo systemctl edit ollama", known.OLLAMA_OPEN.source)


# Other files that start the recipe's server on this host: scripts, units, compose files, crontabs.
#
# A server that was fixed is often started later from somewhere else with the old settings, after a reboot or by a
# colleague.

STARTS_NAME = "other starts"
#: patterns of files below the home folder, and below the root
OF_HOME = (
    "*.sh",
    "*/*.sh",
    "bin/*",
    ".local/bin/*",
    "*compose*.y*ml",
    "*/*compose*.y*ml",
    ".config/systemd/user/*.service",
    ".config/containers/systemd/*.container",
)
OF_SYSTEM = (
    "etc/systemd/system/*.service",
    "etc/containers/systemd/*.container",
    "etc/crontab",
    "etc/cron.d/*",
    "etc/rc.local",
    "usr/local/bin/*",
    "opt/*.sh",
    "opt/*/*.sh",
    "opt/*/*compose*.y*ml",
    "srv/*/*.sh",
    "srv/*/*compose*.y*ml",
)
MOST_FILES, MOST_BYTES, SHOWN = 400, 1 << 16, 3
#: text that starts a server or describes one to start
STARTS = re.compile(
    r"\b(?:docker|podman)(?:\s|-)+(?:run|start|create|restart|compose)\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b"
    r"|\bllama-server\b|\bsglang\.launch_server\b|^\s*image:|^Image=",
    re.MULTILINE,
)
#: mark of the files that sparkwright itself writes
OURS = "Written by sparkwright"


def check_starts(host: Host) -> Iterator[Finding]:
    """Search the files that usually contain such starts, skipping those that this login can't read."""
    wanted = host.wanted
    if not wanted.recipe:
        yield Finding(STARTS_NAME, "unknown", "the host has no recipe, so no server to look for")
        return
    found = [(path, *seen) for path, text in _texts(host) if (seen := _start(text, wanted)) is not None]
    for path, line, what in found[:SHOWN]:
        more = f" ({count(len(found), 'file')} in all)" if len(found) > SHOWN else ""
        evidence = f"{one_line(path)}:{line} starts a server {what}: {known.OTHER_START.says}{more}"
        yield Finding(STARTS_NAME, "warning", evidence, f"less +{line} {quote(path)}", known.OTHER_START.source)
    if not found:
        yield Finding(
            STARTS_NAME, "ok", "no script, unit, compose file or cron table starts it", source=known.OTHER_START.source
        )


def _texts(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the files with their texts, and this login's crontab."""
    machine = host.context.machine
    for folder, prefix, globs in ((machine.home, "~", OF_HOME), (machine.path("/"), "", OF_SYSTEM)):
        paths = (path for glob in globs for path in _paths(folder, glob))
        for path in islice(paths, MOST_FILES):
            try:
                text = bounds.bytes_of(path, MOST_BYTES).decode(errors="replace")
            except (OSError, bounds.TooMuch):
                continue
            if OURS not in text:
                yield f"{prefix}/{path.relative_to(folder)}", text
    if table := host.printed("crontab", "-l"):
        yield "crontab", table


def _paths(folder: Path, glob: str) -> Iterator[Path]:
    try:
        yield from folder.glob(glob)
    except OSError:
        return


def _start(text: str, wanted: Wanted) -> tuple[int, str] | None:
    """Return the line and kind of a start of the recipe's server in a file; None if there is none."""
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    if not STARTS.search("\n".join(lines)):
        return None
    for what, pattern in _signs(wanted):
        line = next((number for number, line in enumerate(lines, 1) if pattern.search(line)), 0)
        if line:
            return line, what
    return None


def _signs(wanted: Wanted) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield patterns that identify a start as this server's: the model, the container's name, the port."""
    if wanted.model_dir:
        yield "with this model", re.compile(rf"{re.escape(wanted.model_dir)}(?![\w.-])")
        yield "with this model", re.compile(rf"(?<![\w.-]){re.escape(Path(wanted.model_dir).name)}(?![\w.-])")
    if wanted.container:
        yield "under this name", re.compile(rf"(?<![\w./-]){re.escape(wanted.container)}(?![\w.-])")
    if wanted.port:
        yield f"on port {wanted.port}", re.compile(rf"--port[= ]{wanted.port}\b|(?<!\d){wanted.port}:\d")


BECOME_NAME = "become"
SOURCE = "docs/security.md"
FIX = "sparkwright runtime.install --host {}"


def check_become(host: Host) -> Iterator[Finding]:
    """Check for a runtime folder that belongs to root.

    Without one, root's tasks are only as trustworthy as the account, which may be intended.
    """
    if host.memory() is None:
        yield Finding(BECOME_NAME, "unknown", "the files of this host cannot be read")
        return
    if not root_runtime.FOLDER.is_dir():
        yield Finding(
            BECOME_NAME, "ok", "root runs from the account's folder, which that account can change", source=SOURCE
        )
        return
    try:
        place = root_runtime.library()
    except Refused as error:
        yield Finding(BECOME_NAME, "bad", error.message, FIX.format(host.wanted.name or "HOST"))
    else:
        yield Finding(BECOME_NAME, "ok", f"root runs from {place.parent}, which nobody else can change")
