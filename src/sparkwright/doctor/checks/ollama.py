"""Ollama: does it hold memory now, start at boot, and listen on every address."""

from __future__ import annotations

from collections.abc import Iterator

from sparkwright.doctor import known
from sparkwright.doctor.findings import Finding
from sparkwright.doctor.host import Host
from sparkwright.host.ollama import ollama_models, ollama_places

NAME = "Ollama"


def check(host: Host) -> Iterator[Finding]:
    source, name = known.OLLAMA.source, host.wanted.name or "HOST"
    seen = ollama_models.inspect(host.context, timeout_s=2)
    if seen.hanging:
        evidence = f"{', '.join(map(str, seen.hanging))} does not answer: it is loading a model or hung"
        yield Finding(NAME, "warning", evidence, f"invoke ollama.ps --host {name}", source)
    elif not seen.present:
        yield Finding(NAME, "ok", "Ollama is not running", source=source)
        return
    elif seen.held:
        models = ", ".join(f"{usage.model.name} {usage.model.size_text}" for usage in seen.held)
        does = {"unload": "a deploy unloads them", "stop": "a deploy stops it"}.get(host.wanted.ollama, "")
        evidence = f"{models} in memory: {known.OLLAMA.says}{f' ({does})' if does else ''}"
        yield Finding(NAME, "warning", evidence, f"invoke ollama.unload --host {name}", source)
    else:
        yield Finding(NAME, "ok", f"{', '.join(map(str, seen.present))}, no model loaded", source=source)
    yield from _open(host)


def _open(host: Host) -> Iterator[Finding]:
    """Check the address: a service that listens on every one lets anybody load a model into the engine's memory."""
    words = (host.printed("systemctl", "show", ollama_places.SERVICE, "-p", "Environment", "--value") or "").split()
    host_is = next((word.strip('"').partition("=")[2] for word in words if "OLLAMA_HOST=" in word), "")
    if "0.0.0.0" in host_is or "[::]" in host_is:
        evidence = f"{ollama_places.SERVICE} listens on every address (OLLAMA_HOST={host_is}): {known.OLLAMA_OPEN.says}"
        yield Finding("Ollama's address", "warning", evidence, "sudo systemctl edit ollama", known.OLLAMA_OPEN.source)
