"""Module that gathers facts about a host."""

from __future__ import annotations

import getpass
import grp
import os
import platform
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sparkwright.errors import SparkwrightError
from sparkwright.host import nvidia_smi
from sparkwright.host import ollama as ollama_models
from sparkwright.host.machine import Machine
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result
from sparkwright.units import format_gib


class Facts(Module["Facts.Args"]):
    """Gather facts about the host, once; every expression can use them as `facts`. A fact that cannot be read is null.

    Returns: user, home, groups (of the current login), hostname, architecture, kernel, python, os, dgx, memory_bytes,
    memory_available_bytes, swap_bytes, disk_free_bytes, gpu {name, driver}, docker {reachable, version, storage_driver,
    root, error}, ollama {reachable, version, models}, sandbox.
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        machine = context.machine
        memory = machine.meminfo()
        with ThreadPoolExecutor(max_workers=3) as pool:  # each waits for an external program or server
            gpu_future, docker_future = pool.submit(_read_gpu, machine), pool.submit(_read_docker, context)
            ollama_future = pool.submit(_read_ollama, machine)
        facts = {
            "user": getpass.getuser(),
            "home": str(machine.home),
            "groups": _login_groups(),
            "hostname": socket.gethostname(),
            "architecture": machine.architecture,
            "kernel": platform.release(),
            "python": platform.python_version(),
            "os": _read_assignments(machine, "/etc/os-release").get("PRETTY_NAME"),
            "dgx": _read_assignments(machine, "/etc/dgx-release") or None,
            "memory_bytes": memory["MemTotal"],
            "memory_available_bytes": memory["MemAvailable"],
            "swap_bytes": memory.get("SwapTotal", 0),
            "disk_free_bytes": shutil.disk_usage(machine.home).free,
            "gpu": gpu_future.result(),
            "docker": docker_future.result(),
            "ollama": ollama_future.result(),
            "sandbox": machine.sandbox,
        }
        return Result(msg=_describe_facts(facts), data=facts)


def _login_groups() -> list[str]:
    names = []
    for gid in os.getgroups():
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return sorted(names)


def _read_assignments(machine: Machine, path: str) -> dict[str, str]:
    try:
        lines = machine.path(path).read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _read_gpu(machine: Machine) -> dict[str, Any] | None:
    """Return the GPU's name and driver. On a GB10 nvidia-smi reports no memory; the GPU shares the host's memory."""
    output = nvidia_smi.query_gpu(machine, nvidia_smi.IDENTITY_VALUES)
    return dict(nvidia_smi.parse_cells(output, nvidia_smi.IDENTITY_VALUES)) or None


def _read_docker(context: Context) -> dict[str, Any]:
    try:
        info = context.docker().api.info()
    except SparkwrightError as error:
        return {"reachable": False, "error": str(error)}
    keys = {"version": "ServerVersion", "storage_driver": "Driver", "root": "DockerRootDir"}
    return {"reachable": True, **{name: info.get(key) for name, key in keys.items()}, "error": None}


def _read_ollama(machine: Machine) -> dict[str, Any]:
    client = ollama_models.Ollama(machine.ollama_url, timeout_s=2)
    try:
        models = [loaded.name for loaded in client.list_loaded()]
        return {"reachable": True, "version": client.version(), "models": models}
    except ollama_models.OllamaAbsent:
        return {"reachable": False, "version": None, "models": []}
    except ollama_models.OllamaBusy:
        return {"reachable": True, "version": None, "models": None}


def _describe_facts(facts: dict[str, Any]) -> str:
    gpu = facts["gpu"]["name"] if facts["gpu"] else "no GPU found"
    memory = f"{format_gib(facts['memory_bytes'])} GiB, {format_gib(facts['memory_available_bytes'])} available"
    models = facts["ollama"]["models"]
    ollama = f", loaded in Ollama: {', '.join(models)}" if models else ""
    return f"{gpu}, {memory}{ollama}"
