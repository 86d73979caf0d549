"""Every module by the name a playbook gives it. Imported one by one, when asked for."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from sparkwright.modules.base import Module

NAMES: tuple[str, ...] = (
    "adopt_image",
    "bench",
    "bench_cells",
    "bench_failed",
    "clear_arm",
    "command",
    "container",
    "copy_key",
    "crash_loop",
    "diagnose",
    "directory",
    "docker_image",
    "docker_ready",
    "doctor",
    "drain",
    "engine_config",
    "engine_log",
    "facts",
    "fail",
    "file",
    "fits",
    "gone",
    "grant_restart",
    "health_timer",
    "hf_model",
    "incident",
    "last_good",
    "inspect_server",
    "lint",
    "liveness",
    "lock_image",
    "lock_model",
    "look_image",
    "memory",
    "memory_back",
    "mend",
    "model_back",
    "models",
    "ollama_ps",
    "ollama_reload",
    "ollama_stop",
    "ollama_unload",
    "package",
    "page_cache",
    "prefix_cache",
    "preflight",
    "prune_images",
    "put_back",
    "reinstated",
    "remove_model",
    "run_script",
    "same_server",
    "send_image",
    "serving",
    "set_aside",
    "share_model",
    "smoke_test",
    "started",
    "stopped",
    "systemd_unit",
    "template",
    "undo_load",
    "user_group",
    "verdict",
    "verify_health",
    "verify_logs",
    "verify_model",
    "wait_ready",
)

#: modules that never speak to the Docker Engine: a playbook of nothing else needs no client of it
WITHOUT_ENGINE = frozenset(
    {"command", "copy_key", "directory", "fail", "file", "package", "systemd_unit", "template", "user_group"}
)


@functools.cache
def load(name: str) -> type[Module[Any]]:
    """The module's class: `docker_image` is `DockerImage` in docker_image.py. Raises KeyError for an unknown name."""
    if name not in NAMES:
        raise KeyError(name)
    file = importlib.import_module(f"sparkwright.modules.{name}")
    found: type[Module[Any]] = getattr(file, "".join(word.capitalize() for word in name.split("_")))
    return found
