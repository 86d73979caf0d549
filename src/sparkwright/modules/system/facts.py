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
from sparkwright.units import gib


class Facts(Module["Facts.Args"]):
    """Gather facts about the host, once, as `facts` in every expression. A fact that cannot be read is null.

    Returns: user, home, groups (of this login), hostname, architecture, kernel, python, os, dgx, memory_bytes,
    memory_available_bytes, swap_bytes, disk_free_bytes, gpu {name, driver}, docker {reachable, version, storage_driver,
    root, error}, ollama {reachable, version, models}, sandbox.
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        machine = context.machine
        memory = machine.meminfo()
        with ThreadPoolExecutor(max_workers=3) as at_once:  # each waits for another program
            gpu, docker = at_once.submit(_gpu, machine), at_once.submit(_docker, context)
            ollama = at_once.submit(_ollama, machine)
        found = {
            "user": getpass.getuser(),
            "home": str(machine.home),
            "groups": _groups(),
            "hostname": socket.gethostname(),
            "architecture": machine.architecture,
            "kernel": platform.release(),
            "python": platform.python_version(),
            "os": _assignments(machine, "/etc/os-release").get("PRETTY_NAME"),
            "dgx": _assignments(machine, "/etc/dgx-release") or None,
            "memory_bytes": memory["MemTotal"],
            "memory_available_bytes": memory["MemAvailable"],
            "swap_bytes": memory.get("SwapTotal", 0),
            "disk_free_bytes": shutil.disk_usage(machine.home).free,
            "gpu": gpu.result(),
            "docker": docker.result(),
            "ollama": ollama.result(),
            "sandbox": machine.sandbox,
        }
        return Result(msg=_sentence(found), data=found)


def _groups() -> list[str]:
    """Return the groups of the current login: a group added since then does not count yet."""
    names = []
    for gid in os.getgroups():
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return sorted(names)


def _assignments(machine: Machine, path: str) -> dict[str, str]:
    try:
        lines = machine.path(path).read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _gpu(machine: Machine) -> dict[str, Any] | None:
    """Return the GPU's name and driver. Its memory is that of /proc/meminfo: on a GB10 nvidia-smi gives no figures."""
    found = nvidia_smi.cells(nvidia_smi.ask(machine, nvidia_smi.IDENTITY), nvidia_smi.IDENTITY)
    return dict(found) or None


def _docker(context: Context) -> dict[str, Any]:
    try:
        info = context.docker().api.info()
    except SparkwrightError as error:
        return {"reachable": False, "error": str(error)}
    about = {"version": "ServerVersion", "storage_driver": "Driver", "root": "DockerRootDir"}
    return {"reachable": True, **{name: info.get(its) for name, its in about.items()}, "error": None}


def _ollama(machine: Machine) -> dict[str, Any]:
    client = ollama_models.Ollama(machine.ollama_url, timeout_s=2)
    try:
        return {"reachable": True, "version": client.version(), "models": [loaded.name for loaded in client.loaded()]}
    except ollama_models.Absent:
        return {"reachable": False, "version": None, "models": []}
    except ollama_models.Busy:
        return {"reachable": True, "version": None, "models": None}


def _sentence(found: dict[str, Any]) -> str:
    gpu = found["gpu"]["name"] if found["gpu"] else "no GPU found"
    memory = f"{gib(found['memory_bytes'])} GiB, {gib(found['memory_available_bytes'])} available"
    models = found["ollama"]["models"]
    ollama = f", Ollama holds {', '.join(models)}" if models else ""
    return f"{gpu}, {memory}{ollama}"
