"""Registry of the module classes by their names in playbooks; their files are imported on demand."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from sparkwright.host.module import Module

#: the modules of each file below this folder
MODULES_BY_FILE: dict[str, tuple[str, ...]] = {
    "cluster.fabric": ("fabric", "fabric_ready", "link_rate"),
    "cluster.members": ("barrier", "rank_joined", "keep_heal_token"),
    "gateway.gateway_container": (
        *("gateway_running", "gateway_restore", "gateway_return", "gateway_own_key", "gateway_state"),
    ),
    "gateway.gateway_files": ("gateway_check", "gateway_keep", "gateway_last_good", "gateway_proof"),
    "image.docker_image": ("docker_image", "adopt_image", "share_image", "undo_load"),
    "image.image_transfer": ("copy_key", "inspect_image", "send_image"),
    "lab": ("bench", "bench_cells", "bench_failed", "clear_arm"),
    "memory": ("assert_memory_fits", "memory", "wait_memory_released"),
    "model.hf_model": ("hf_model", "second_models"),
    "model.model_files": ("page_cache", "restore_model_files", "share_model", "verify_model"),
    "ollama": ("ollama_unload", "ollama_stop", "ollama_reload", "ollama_ps"),
    "proof.engine_reports": ("engine_log", "engine_config", "gpu_used", "verify_logs"),
    "proof.inspect_server": ("inspect_server",),
    "proof.liveness": ("liveness", "verify_health", "same_server"),
    "proof.load_proof": ("load_proof", "depth_rates"),
    "proof.preflight": ("preflight", "lint"),
    "proof.probes": ("probes",),
    "proof.repeated_requests": ("prefix_cache", "reference_text"),
    "proof.smoke_test": ("smoke_test",),
    "proof.verdict": ("verdict",),
    "server.container": ("container",),
    "server.previous_server": ("restore_previous", "grant_restart"),
    "server.records": ("last_good", "incident", "run_script", "grant_restart_previous"),
    "server.server_inspection": ("diagnose", "serving", "container_settings"),
    "server.start": ("started", "wait_ready", "crash_loop", "move_cache_aside"),
    "server.stop": ("stop_and_keep", "stopped", "wait_exited", "drain"),
    "server.turns": ("turn", "take_turn", "interim_fits", "interim_serves", "interim_stopped"),
    "spark_lock": ("lock_image", "lock_model"),
    "storage": ("prune_caches", "prune_images", "remove_model", "models"),
    "system.clean_host": ("clean_host",),
    "system.command": ("command", "end_host", "fail"),
    "system.facts": ("facts",),
    "system.health_timer": ("health_timer",),
    "system.host_inspection": ("doctor", "fix", "survey"),
    "system.host_settings": ("file", "host_settings", "package", "template", "user_group"),
    "system.services": ("docker_ready", "port_forwarder", "systemd_unit"),
}

#: the import path of each module by its name
IMPORT_PATHS = {name: f"{__package__}.{file}" for file, names in MODULES_BY_FILE.items() for name in names}
NAMES: tuple[str, ...] = tuple(sorted(IMPORT_PATHS))

#: modules that verify something: a terminal shows their message even if nothing changed
PROVING_MODULES = frozenset(
    {
        "assert_memory_fits",
        "container",
        "depth_rates",
        "fabric_ready",
        "gateway_check",
        "gateway_proof",
        "gpu_used",
        "hf_model",
        "inspect_server",
        "liveness",
        "load_proof",
        "lock_image",
        "lock_model",
        "prefix_cache",
        "probes",
        "rank_joined",
        "reference_text",
        "same_server",
        "second_models",
        "smoke_test",
        "verify_health",
        "verify_logs",
    }
)

#: modules that never use the Docker Engine; a playbook with only these needs no Docker client
MODULES_WITHOUT_ENGINE = frozenset(
    {
        "barrier",
        "command",
        "copy_key",
        "fabric",
        "fail",
        "file",
        "host_settings",
        "link_rate",
        "package",
        "systemd_unit",
        "template",
        "user_group",
    }
)


@functools.cache
def load(name: str) -> type[Module[Any]]:
    """Return the module's class, such as `DockerImage` for `docker_image`. Raises KeyError for an unknown name."""
    python_module = importlib.import_module(IMPORT_PATHS[name])
    module_class: type[Module[Any]] = getattr(python_module, "".join(word.capitalize() for word in name.split("_")))
    return module_class
