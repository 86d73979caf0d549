"""Every module by the name a playbook gives it. Imported one by one, when asked for."""

from __future__ import annotations

import importlib
from typing import Any

from sparkwright.modules.base import Module

NAMES: tuple[str, ...] = (
    "command",
    "container",
    "diagnose",
    "directory",
    "docker_image",
    "engine_log",
    "facts",
    "fail",
    "file",
    "grant_restart",
    "hf_model",
    "lint",
    "lock_image",
    "lock_model",
    "memory",
    "ollama_unload",
    "package",
    "prefix_cache",
    "preflight",
    "put_back",
    "set_aside",
    "smoke_test",
    "started",
    "stopped",
    "systemd_unit",
    "template",
    "user_group",
    "verdict",
    "verify_health",
    "verify_logs",
    "wait_ready",
)


def load(name: str) -> type[Module[Any]]:
    """The module's class: `docker_image` is `DockerImage` in docker_image.py. Raises KeyError for an unknown name."""
    if name not in NAMES:
        raise KeyError(name)
    file = importlib.import_module(f"sparkwright.modules.{name}")
    found: type[Module[Any]] = getattr(file, "".join(word.capitalize() for word in name.split("_")))
    return found
