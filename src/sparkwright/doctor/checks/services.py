"""Checks of other programs: Ollama, other ways in which the server is started, and the runtime of `become`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host, Wanted
from sparkwright.errors import Refused
from sparkwright.host import root_runtime
from sparkwright.host.ollama import ollama_models, ollama_places
from sparkwright.shell import quote
from sparkwright.trust import bounds
from sparkwright.visible import count, one_line

OLLAMA_NAME = "Ollama"


def check_ollama(host: Host) -> Iterator[Finding]:
    source, name = known.OLLAMA.source, host.wanted.name or "HOST"
    seen = ollama_models.inspect(host.context, timeout_s=2)
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
    """Check the address: a service that listens on every one lets anybody load a model into the engine's memory."""
    words = (host.printed("systemctl", "show", ollama_places.SERVICE, "-p", "Environment", "--value") or "").split()
    host_is = next((word.strip('"').partition("=")[2] for word in words if "OLLAMA_HOST=" in word), "")
    if "0.0.0.0" in host_is or "[::]" in host_is:
        evidence = f"{ollama_places.SERVICE} listens on every address (OLLAMA_HOST={host_is}): {known.OLLAMA_OPEN.says}"
        yield Finding("Ollama's address", "warning", evidence, "sudo systemctl edit ollama", known.OLLAMA_OPEN.source)


# Other ways in which the recipe's server is started on this host: scripts, units, compose files, cron.
#
# A server that was once fixed is often started from somewhere else later, after a reboot or by a colleague, with the old
# settings.

STARTS_NAME = "other starts"
#: below the home, and below the root
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
#: text that starts a server, or describes one that a program starts
STARTS = re.compile(
    r"\b(?:docker|podman)(?:\s|-)+(?:run|start|create|restart|compose)\b|\bvllm\s+serve\b|\bvllm\.entrypoints\b"
    r"|\bllama-server\b|\bsglang\.launch_server\b|^\s*image:|^Image=",
    re.MULTILINE,
)
#: the mark of files that sparkwright itself writes
OURS = "Written by sparkwright"


def check_starts(host: Host) -> Iterator[Finding]:
    """Inspect the files that usually hold such starts; those that this login can't read are skipped."""
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
    """Yield the files with their text, and this login's cron table."""
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
    """Return the line and the kind of a start of the recipe's server in a file; None if there is none."""
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    if not STARTS.search("\n".join(lines)):
        return None
    for what, pattern in _signs(wanted):
        line = next((number for number, line in enumerate(lines, 1) if pattern.search(line)), 0)
        if line:
            return line, what
    return None


def _signs(wanted: Wanted) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the signs by which a start is recognized as this server's: its model, its container's name, its port."""
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
    """Check for a runtime folder of root's own. Without one, root's tasks are as trusted as the account, which may be
    intended."""
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
