"""A recipe as a compose file with one service."""

from __future__ import annotations

from typing import Any

import yaml

from sparkwright.project.exporting.docker_run import note_model, refuse_cluster
from sparkwright.project.exporting.export import Export
from sparkwright.protocol.container import DOCKER_OPTIONS

#: options of a recipe's container with the equivalent keys of a service
SAME = {
    "ipc": "ipc", "shm_size": "shm_size", "user": "user", "working_dir": "working_dir", "hostname": "hostname", "pid": "pid",
    "init": "init", "privileged": "privileged", "stop_signal": "stop_signal", "memory": "mem_limit",
    "memory_swap": "memswap_limit",
    "oom_score_adj": "oom_score_adj", "cpuset_cpus": "cpuset", "cap_add": "cap_add", "cap_drop": "cap_drop", "cpus": "cpus",
    "security_opt": "security_opt", "devices": "devices", "extra_hosts": "extra_hosts", "dns": "dns", "tmpfs": "tmpfs",
    "group_add": "group_add", "sysctls": "sysctls", "network": "network_mode", "ports": "ports", "volumes": "volumes",
    "labels": "labels",
}  # fmt: skip


def text(export: Export) -> str:
    """Return the compose file. Dollars are doubled, as compose interpolates single ones.

    Raises Refused for a recipe of several hosts.
    """
    refuse_cluster(export)
    note_model(export)
    spec = export.spec
    service: dict[str, Any] = {"image": export.image, "container_name": spec.name, "restart": spec.restart}
    if spec.entrypoint:
        service["entrypoint"] = _plain(spec.entrypoint)
    service["command"] = _plain(spec.command)
    for name in DOCKER_OPTIONS:
        value = getattr(spec, name)
        if name in SAME and value not in (None, "", (), {}, False, 0):
            service[SAME[name]] = _plain(value)
    if spec.env:
        service["environment"] = _plain(spec.env)
    if spec.ulimits:
        service["ulimits"] = {name: _limit(value) for name, value in spec.ulimits.items()}
    if spec.gpus:
        ids = spec.gpus.removeprefix("device=").split(",") if spec.gpus.startswith("device=") else None
        device = {"driver": "nvidia", **({"device_ids": ids} if ids else {"count": "all"}), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return yaml.safe_dump({"services": {spec.name: service}}, sort_keys=False, width=120)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def _limit(value: str) -> Any:
    soft, _, hard = value.partition(":")
    return {"soft": int(soft), "hard": int(hard)} if hard else int(soft)
