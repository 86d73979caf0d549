"""Checks for Docker, Ollama, files that start the server without sparkwright, and the runtime for `become`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sparkwright.doctor import known_facts
from sparkwright.doctor.checks.registration import register_check
from sparkwright.doctor.host import FIXES, Finding, Host, IntendedServer
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.host import ollama, root_runtime
from sparkwright.host.containers import containers, mount_sources, ownership
from sparkwright.host.containers.inspection import is_ours
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.records.own_folders import OWN_FILE_MARK
from sparkwright.host.runs.context import SocketDenied
from sparkwright.shell import quote
from sparkwright.trust import bounds
from sparkwright.visible import format_count, one_line

DOCKER_CHECK = "docker"
DOCKER_GROUP = "docker"


@register_check(DOCKER_CHECK)
def check_docker(host: Host) -> Iterator[Finding]:
    try:
        version = host.context.docker().api.version()["Version"]
    except SparkwrightError as error:
        yield _unusable_docker_finding(host, error)
    else:
        evidence = f"Docker {version}, accessible to {host.user}"
        yield Finding(DOCKER_CHECK, "ok", evidence, source=known_facts.DOCKER_GROUP.source)
    result = host.run_program("systemctl", "is-enabled", "docker.service", "docker.socket")
    states = result.out.split() if result is not None else []
    if "disabled" in states and "enabled" not in states:
        fix_name = "docker at boot"
        evidence = "docker.service is disabled: no server starts after a reboot"
        fix = FIXES[fix_name].manual_command(host.user)
        yield Finding("docker at boot", "bad", evidence, fix, "systemctl(1)", fix_name)
    elif "enabled" in states:
        yield Finding("docker at boot", "ok", "Docker starts at boot", source="systemctl(1)")
    else:
        yield Finding("docker at boot", "unknown", "unknown whether Docker starts at boot: no answer from systemd")


def _unusable_docker_finding(host: Host, error: SparkwrightError) -> Finding:
    """Return the finding for a Docker Engine that denies permission or is not running."""
    gid, members = _read_docker_group(host)
    session_gids = next((row[1].split() for row in host.rows("/proc/self/status") if row[0] == "Groups"), [])
    if not isinstance(error, SocketDenied) or gid in session_gids:
        return Finding(DOCKER_CHECK, "bad", error.message, error.fix.partition("`")[2].partition("`")[0], "dockerd(8)")
    if host.user in members:
        fact = known_facts.LIVE_LOGIN
        evidence = f"{host.user} is in the group {DOCKER_GROUP}, but this login session is not: {fact.text}"
        return Finding(DOCKER_CHECK, "bad", evidence, f"ssh -O exit {host.server.name or 'HOST'}", fact.source)
    source, fix_name = known_facts.DOCKER_GROUP.source, "docker group"
    if not gid:
        return Finding(DOCKER_CHECK, "bad", f"there is no group {DOCKER_GROUP}", "getent group docker", source)
    evidence = f"no permission to use the Docker socket: {host.user} is not in the group {DOCKER_GROUP}"
    return Finding(DOCKER_CHECK, "bad", evidence, FIXES[fix_name].manual_command(host.user), source, fix_name)


def _read_docker_group(host: Host) -> tuple[str, list[str]]:
    """Return the docker group's ID and members. A membership change takes effect at the next login."""
    rows = [row for row in host.rows("/etc/group") if len(row) == 4 and row[0] == DOCKER_GROUP]
    return (rows[0][2], rows[0][3].split(",")) if rows else ("", [])


# Bind mounts of our containers whose source on the host is a symbolic link, or that a container could replace with a link.
#
# When sparkwright starts a container, it refuses such a mount or recreates the mounted folder. Docker does not, so this check
# reports such mounts before Docker itself restarts the container, for example after a reboot.

MOUNTS_CHECK = "mounts"
MOUNTS_SOURCE = "decision 35: Docker follows links in the source of a bind mount at each start"


@register_check(MOUNTS_CHECK)
def check_mounts(host: Host) -> Iterator[Finding]:
    """Check the mounts of all containers that sparkwright created, even if they are not running."""
    own_containers = _own_containers(host)
    if own_containers is None:
        yield Finding(MOUNTS_CHECK, "unknown", "Docker did not answer", source=MOUNTS_SOURCE)
        return
    fix = _deploy_command(host)
    problem_count = 0
    for container in own_containers:
        name = containers.name_of(container)
        for inner, outer in mount_sources.find_nested(container):
            problem_count += 1
            evidence = (
                f"{name}: mount {inner} is inside mount {outer}, which the container can write to: it could replace "
                f"{inner} with a link"
            )
            yield Finding(MOUNTS_CHECK, "warning", evidence, fix, MOUNTS_SOURCE)
        try:
            mount_sources.refuse_unsafe_container(host.context, container)
        except Refused as error:
            problem_count += 1
            yield Finding(MOUNTS_CHECK, "bad", f"{name}: {error.message}", error.fix or fix, MOUNTS_SOURCE)
    if not problem_count:
        source_count = sum(len(mount_sources.container_sources(container)) for container in own_containers)
        mounts_text = f"{format_count(source_count, 'mount')} of {format_count(len(own_containers), 'container')}"
        yield Finding(MOUNTS_CHECK, "ok", f"{mounts_text}, no nested mounts, no links", source=MOUNTS_SOURCE)


def _own_containers(host: Host) -> list[dict[str, Any]] | None:
    """Return the inspect data of the containers that sparkwright created, or None if Docker did not answer."""
    try:
        client = host.context.docker()
        rows = [row for row in client.api.containers(all=True) if is_ours(row)]
        return [inspected for row in rows if (inspected := containers.inspect(client, str(row["Id"]))) is not None]
    except Exception:  # Docker denies access, is down or restarting; the check `docker` reports the reason
        return None


def _deploy_command(host: Host) -> str:
    return f"sparkwright deploy --host {host.server.name}" if host.server.name else "sparkwright deploy"


CONTAINERS_CHECK = "containers"
CONTAINERS_SOURCE = "decision 61: a new container is created before the server is stopped"


@register_check(CONTAINERS_CHECK)
def check_containers(host: Host) -> Iterator[Finding]:
    """Check for containers that were created to replace a server but never started."""
    own_containers = _own_containers(host)
    if own_containers is None:
        yield Finding(CONTAINERS_CHECK, "unknown", "Docker did not answer", source=CONTAINERS_SOURCE)
        return
    unstarted_containers = [
        container for container in own_containers if ownership.is_unstarted_replacement(host.context, container)
    ]
    for container in unstarted_containers:
        evidence = f"{ownership.describe_holder(host.context, container)}; it uses no memory"
        yield Finding(CONTAINERS_CHECK, "warning", evidence, _deploy_command(host), CONTAINERS_SOURCE)
    if not unstarted_containers:
        containers_text = format_count(len(own_containers), "container")
        evidence = f"{containers_text} created by sparkwright, none left over from an interrupted run"
        yield Finding(CONTAINERS_CHECK, "ok", evidence, source=CONTAINERS_SOURCE)


PLATFORM_CHECK = "image platform"


@register_check(PLATFORM_CHECK, per_server=True)
def check_platform(host: Host) -> Iterator[Finding]:
    platform, server, source = machine_platform(host.context.machine), host.server, known_facts.PLATFORM.source
    if not server.image:
        yield Finding(PLATFORM_CHECK, "unknown", "the host has no recipe, so there is no image to check")
    elif not server.platforms:
        evidence = f"the platforms of {server.image} are not in spark.lock"
        yield Finding(PLATFORM_CHECK, "unknown", evidence, f"invoke lock --host {server.name or 'HOST'}", source)
    elif platform in server.platforms:
        yield Finding(PLATFORM_CHECK, "ok", f"{server.image} supports {platform}", source=source)
    else:
        evidence = f"{server.image} supports {', '.join(server.platforms)}, not {platform}: {known_facts.PLATFORM.text}"
        yield Finding(PLATFORM_CHECK, "bad", evidence, "docker buildx imagetools inspect " + server.image, source)


OLLAMA_CHECK = "Ollama"


@register_check(OLLAMA_CHECK)
def check_ollama(host: Host) -> Iterator[Finding]:
    source, name = known_facts.OLLAMA.source, host.server.name or "HOST"
    status = ollama.inspect(host.context, timeout_s=2)
    if status.hanging_instances:
        evidence = (
            f"no answer from {', '.join(map(str, status.hanging_instances))}: Ollama is either loading a model or hung"
        )
        yield Finding(OLLAMA_CHECK, "warning", evidence, f"invoke ollama.ps --host {name}", source)
    elif not status.running_instances:
        yield Finding(OLLAMA_CHECK, "ok", "Ollama is not running", source=source)
        return
    elif status.held_models:
        models_text = ", ".join(f"{usage.model.name} {usage.model.size_text}" for usage in status.held_models)
        deploy_effect = {"unload": "a deploy unloads them", "stop": "a deploy stops it"}.get(host.server.ollama, "")
        evidence = f"{models_text} in memory: {known_facts.OLLAMA.text}{f' ({deploy_effect})' if deploy_effect else ''}"
        yield Finding(OLLAMA_CHECK, "warning", evidence, f"invoke ollama.unload --host {name}", source)
    else:
        yield Finding(
            OLLAMA_CHECK, "ok", f"{', '.join(map(str, status.running_instances))}, no model loaded", source=source
        )
    yield from _check_ollama_address(host)


def _check_ollama_address(host: Host) -> Iterator[Finding]:
    """Check that the service does not listen on all addresses: anyone on the network could load models and fill the memory."""
    environment = (
        host.read_output("systemctl", "show", ollama.SERVICE_UNIT, "-p", "Environment", "--value") or ""
    ).split()
    address = next((word.strip('"').partition("=")[2] for word in environment if "OLLAMA_HOST=" in word), "")
    if "0.0.0.0" in address or "[::]" in address:
        evidence = (
            f"{ollama.SERVICE_UNIT} listens on every address (OLLAMA_HOST={address}): {known_facts.OLLAMA_OPEN.text}"
        )
        yield Finding(
            "Ollama's address", "warning", evidence, "sudo systemctl edit ollama", known_facts.OLLAMA_OPEN.source
        )


# Files that start the recipe's server on this host without sparkwright: scripts, units, compose files, crontabs.
#
# After the recipe has been fixed, such a file may still start the server with the old settings, at a reboot or when it is run.

OTHER_STARTERS_CHECK = "other starts"
#: patterns of files below the home folder
HOME_GLOBS = (
    "*.sh",
    "*/*.sh",
    "bin/*",
    ".local/bin/*",
    "*compose*.y*ml",
    "*/*compose*.y*ml",
    ".config/systemd/user/*.service",
    ".config/containers/systemd/*.container",
)
#: patterns of files below the root folder
SYSTEM_GLOBS = (
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
MAX_FILES, MAX_FILE_BYTES, MAX_FINDINGS = 400, 1 << 16, 3
#: matches a command that starts a container or a server, and the image setting of a compose file or a unit
START_COMMAND_PATTERN = re.compile(
    r"\b(?:docker|podman)(?:\s|-)+(?:run|start|create|restart|compose)\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b"
    r"|\bllama-server\b|\bsglang\.launch_server\b|^\s*image:|^Image=",
    re.MULTILINE,
)


@register_check(OTHER_STARTERS_CHECK)
def check_other_starters(host: Host) -> Iterator[Finding]:
    """Check for files that start the recipe's server without sparkwright. Files that this user can't read are skipped."""
    server = host.server
    if not server.recipe:
        yield Finding(OTHER_STARTERS_CHECK, "unknown", "the host has no recipe, so there is no server to look for")
        return
    fact = known_facts.OTHER_START
    starts = [(path, *start) for path, text in _read_files(host) if (start := _find_start(text, server)) is not None]
    for path, line_number, shared_setting in starts[:MAX_FINDINGS]:
        total_clause = f" ({format_count(len(starts), 'file')} in all)" if len(starts) > MAX_FINDINGS else ""
        evidence = f"{one_line(path)}:{line_number} starts a server {shared_setting}: {fact.text}{total_clause}"
        yield Finding(OTHER_STARTERS_CHECK, "warning", evidence, f"less +{line_number} {quote(path)}", fact.source)
    if not starts:
        evidence = "no script, unit, compose file or cron table starts the recipe's server"
        yield Finding(OTHER_STARTERS_CHECK, "ok", evidence, source=fact.source)


def _read_files(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the path and text of each file, and of this user's crontab."""
    machine = host.context.machine
    for folder, prefix, globs in ((machine.home, "~", HOME_GLOBS), (machine.path("/"), "", SYSTEM_GLOBS)):
        paths = (path for glob in globs for path in _glob_files(folder, glob))
        for path in islice(paths, MAX_FILES):
            try:
                text = bounds.read_bytes(path, MAX_FILE_BYTES).decode(errors="replace")
            except (OSError, bounds.LimitExceeded):
                continue
            if OWN_FILE_MARK not in text:
                yield f"{prefix}/{path.relative_to(folder)}", text
    if crontab := host.read_output("crontab", "-l"):
        yield "crontab", crontab


def _glob_files(folder: Path, glob: str) -> Iterator[Path]:
    try:
        yield from folder.glob(glob)
    except OSError:
        return


def _find_start(text: str, server: IntendedServer) -> tuple[int, str] | None:
    """Return the line and shared setting ("on port 8000") of a command that starts the recipe's server; None if absent."""
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    if not START_COMMAND_PATTERN.search("\n".join(lines)):
        return None
    for shared_setting, pattern in _server_patterns(server):
        for line_number, line in enumerate(lines, 1):
            if pattern.search(line):
                return line_number, shared_setting
    return None


def _server_patterns(server: IntendedServer) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the setting that a command may share with the recipe's server (model, container name, port), and its pattern."""
    if server.model_dir:
        yield "with this model", re.compile(rf"{re.escape(server.model_dir)}(?![\w.-])")
        yield "with this model", re.compile(rf"(?<![\w.-]){re.escape(Path(server.model_dir).name)}(?![\w.-])")
    if server.container:
        yield "under this name", re.compile(rf"(?<![\w./-]){re.escape(server.container)}(?![\w.-])")
    if server.port:
        yield f"on port {server.port}", re.compile(rf"--port[= ]{server.port}\b|(?<!\d){server.port}:\d")


BECOME_CHECK = "become"
BECOME_SOURCE = "docs/security.md"
BECOME_FIX = "sparkwright runtime.install --host {}"


@register_check(BECOME_CHECK)
def check_become(host: Host) -> Iterator[Finding]:
    """Check that the runtime for root's tasks, if installed, is owned by root.

    Without it, root executes files that the account can change, which may be intended.
    """
    if host.memory() is None:
        yield Finding(BECOME_CHECK, "unknown", "cannot read this host's files")
        return
    if not root_runtime.FOLDER.is_dir():
        evidence = "root's tasks run from the account's folder, which the account can change"
        yield Finding(BECOME_CHECK, "ok", evidence, source=BECOME_SOURCE)
        return
    try:
        library = root_runtime.resolve_library()
    except Refused as error:
        yield Finding(BECOME_CHECK, "bad", error.message, BECOME_FIX.format(host.server.name or "HOST"))
    else:
        yield Finding(BECOME_CHECK, "ok", f"root's tasks run from {library.parent}, which only root can change")
