"""The simulated Spark: all services, one pool of memory, one fault at a time."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from sparkwright.host.state import write_atomically
from sparkwright.sandbox import cluster, control, system
from sparkwright.sandbox.docker.container import SharedState
from sparkwright.sandbox.docker.containers import Containers
from sparkwright.sandbox.docker.docker_api import DockerApi, DockerEngine
from sparkwright.sandbox.docker.images import Images
from sparkwright.sandbox.faults import START_FAULTS
from sparkwright.sandbox.http_server import HttpError, Server, UnixServer
from sparkwright.sandbox.hub import Hub, HubApi
from sparkwright.sandbox.memory import MemoryPool
from sparkwright.sandbox.ollama import LARGE, MODELS, Model, Ollama, OllamaApi
from sparkwright.sandbox.system import Gpu

ALIVE_FILE, LOST_FILE = "alive", "lost"
DEFAULT_PORT = 18471  # of hosts/sandbox.yml

NVIDIA_SMI = """#!/bin/sh
# A pretend GB10: it gives no memory figures, as the real one.
case "$*" in
  *compute-apps*) cat "$0.processes" 2>/dev/null ;;
  *--query-gpu=*)
    fields=${1#--query-gpu=}; row=""; IFS=,
    for field in $fields; do
      case "$field" in
        name) value="NVIDIA GB10" ;; driver_version) value=580.95.05 ;; temperature.gpu) value=47 ;;
        power.draw) value=38.20 ;; clocks.sm | clocks.current.sm) value=2411 ;; utilization.gpu) value=3 ;;
        *) value="[N/A]" ;;
      esac
      row="${row:+$row, }$value"
    done
    echo "$row" ;;
  *) echo "NVIDIA-SMI 580.95.05   NVIDIA GB10   Memory-Usage: Not Supported   (sandbox)" ;;
esac
"""
#: changes of its figures by each fault
GPU_FAULTS: dict[str, dict[str, str]] = {
    "power": {"value=38.20": "value=21.40", "value=2411": "value=712", "value=3 ": "value=96 "},
    "hot": {"value=47": "value=96"},
}


def read_fault_order(folder: Path) -> str:
    """Return the requested fault with its time, or an empty string.

    The time makes a repeated fault differ, so that it breaks again what was cured meanwhile.
    """
    path = folder / "fault"
    try:
        return f"{path.read_text().strip()} {path.stat().st_mtime_ns}"
    except FileNotFoundError:
        return ""


class Spark:
    """A simulated Spark.

    Args:
        folder: holds all of its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fault_file = folder / "fault"
        self._write_files()
        instant = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED") == "instant"
        self.pool = MemoryPool(folder / "root/proc/meminfo", self._go_down)
        self.images = Images(self.fault, instant=instant)
        gpu = Gpu(folder / "bin/nvidia-smi.processes")
        world = SharedState(self.pool, gpu, self.lasting_fault, self.fault_since_s, folder / "home")
        self.containers = Containers(self.images, world, folder / "containers.json")
        busy, returns = (lambda: self.fault() == "ollama-busy"), (lambda: self.fault() == "ollama-returns")
        self.ollama = Ollama(self.pool, busy, returns, loaded=not (folder / "used").exists())
        (folder / "used").touch()
        self._squatter: subprocess.Popen[bytes] | None = None

    def fault(self) -> str:
        """Return the name of the active fault."""
        return read_fault_order(self.folder).partition(" ")[0]

    def lasting_fault(self) -> str:
        """Return the active fault, unless it is a one-time event."""
        return "" if self.fault() in cluster.EVENTS else self.fault()

    def fault_since_s(self) -> float:
        """Return the time at which the active fault was set, in seconds since the epoch."""
        try:
            return self._fault_file.stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def serve(self) -> None:
        """Start everything, report the addresses, and serve until the folder is removed."""
        alive = (self.folder / ALIVE_FILE).open("w")
        fcntl.flock(alive, fcntl.LOCK_EX)  # held while this process runs: unlike a pid, a lock is never reused
        docker = UnixServer(self.folder / "docker.sock", DockerApi, DockerEngine(self.images, self.containers))
        ollama = Server(0, OllamaApi, self.ollama)
        hub = Server(0, HubApi, Hub(lambda: self.fault() == "half-model", lambda: self.fault() == "moved-model"))
        for service in (docker, ollama, hub):
            service.start()
        self.containers.restore()
        env = {
            "SPARKWRIGHT_ROOT": str(self.folder / "root"),
            "SPARKWRIGHT_ARCHITECTURE": "aarch64",
            "HOME": str(self.folder / "home"),
            "DOCKER_HOST": f"unix://{self.folder / 'docker.sock'}",
            "OLLAMA_HOST": f"127.0.0.1:{ollama.port}",
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        state = self.folder / "state.json"
        write_atomically(state, json.dumps({"pid": os.getpid(), "env": env}).encode())
        applied, last_order = self.folder / "applied", ""
        previously_applied = applied.read_text() if applied.exists() else ""
        applied.unlink(missing_ok=True)
        while state.exists():
            current_order = read_fault_order(self.folder)
            if current_order != last_order:
                self._apply(self.fault(), again=current_order == previously_applied)
                last_order, previously_applied = current_order, ""
                applied.write_text(current_order)
            time.sleep(0.05)
        for container in list(self.containers.all.values()):
            if container.running:
                threading.Thread(target=container.stop, daemon=True).start()

    def _go_down(self) -> None:
        """Handle exhausted memory: nothing on the host answers until it is rebooted, by setting another fault or clearing it."""
        (self.folder / LOST_FILE).touch()
        cluster.power_off(self.containers, self.folder)

    def _reboot(self) -> None:
        """Boot a lost host again."""
        system.new_boot(self.folder / "root")
        (self.folder / LOST_FILE).unlink()
        for container in self.containers.all.values():
            self.containers.restart_by_policy(container)

    def _apply(self, fault: str, *, again: bool) -> None:
        """Apply a fault to the running containers; the rest of it shows at the next start or request.

        Args:
            fault: name of the fault.
            again: the fault was set under an earlier daemon; what has been cured since stays cured.
        """
        if (self.folder / LOST_FILE).exists() and not (again and fault):
            self._reboot()
        for container in () if again else self.containers.all.values():
            container.sick = container.running or fault in START_FAULTS
            if fault in ("crash-loop", "slow-start") and container.running and container.engine is not None:
                container.engine.crash()
        if not again:
            cluster.apply_event(fault, self.containers, self.folder)
        self._occupy_ports(fault == "port-taken")
        self._write_nvidia_smi(fault)
        self._write_link_files(fault)
        disk_free = self.folder / "root/sandbox/disk_free"
        if fault == "no-space":
            disk_free.parent.mkdir(parents=True, exist_ok=True)
            disk_free.write_text("1048576")
        else:
            disk_free.unlink(missing_ok=True)
        if fault == "half-model":
            for path in sorted((self.folder / "home").rglob("model-00007-*.safetensors"))[:1]:
                path.write_bytes(path.read_bytes()[:-1000] + bytes(1000))
        if fault == "ollama-busy":
            self._load_ollama_model(LARGE, slowly=False)
        if fault == "ollama-loads":
            arguments = {"model": MODELS["gpt-oss:20b"], "slowly": True}
            threading.Thread(target=self._load_ollama_model, kwargs=arguments, daemon=True).start()

    def _load_ollama_model(self, model: Model, *, slowly: bool) -> None:
        """Request a model from Ollama as a client would. It is refused if a server holds the memory, as by the real one."""
        try:
            self.ollama.load(model, slowly=slowly)
        except HttpError as refused:
            print(f"Ollama does not load {model.name}: {refused}", flush=True)

    def _occupy_ports(self, is_active: bool) -> None:
        """Occupy the server's port, if it is free, and the next one, as another program would."""
        if self._squatter is not None:
            self._squatter.communicate()  # closes its standard input
            self._squatter = None
        if not is_active:
            return
        file = self.folder / "serve_port"
        port = int(file.read_text()) if file.exists() else DEFAULT_PORT
        command = [sys.executable, "-P", "-m", "sparkwright.sandbox", "occupy", str(port), str(port + 1)]
        self._squatter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._squatter.stdout is not None
        self._squatter.stdout.readline()  # it listens

    def _write_files(self) -> None:
        self._write_nvidia_smi("")
        system.write_files(self.folder / "root")
        self._write_link_files("")
        (self.folder / "home").mkdir(exist_ok=True)

    def _write_link_files(self, fault: str) -> None:
        """Write the files of the fabric link, if the host has one."""
        if number := control.link_number_of(self.folder):
            cluster.write_fabric_files(self.folder / "root", number, degraded=fault == "link-degraded")

    def _write_nvidia_smi(self, fault: str) -> None:
        """Write the simulated nvidia-smi."""
        text = NVIDIA_SMI
        for before, after in GPU_FAULTS.get(fault, {}).items():
            text = text.replace(before, after)
        write_atomically(self.folder / "bin/nvidia-smi", text.encode(), mode=0o755)
