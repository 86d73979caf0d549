"""The daemon of a simulated Spark: its services, their shared memory, and the active fault."""

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
from sparkwright.sandbox.faults import GPU_FAULTS, START_FAULTS
from sparkwright.sandbox.http_server import HttpError, Server, UnixServer
from sparkwright.sandbox.hub import Hub, HubApi
from sparkwright.sandbox.memory import MemoryPool
from sparkwright.sandbox.ollama import LARGE_MODEL, MODELS, Model, Ollama, OllamaApi
from sparkwright.sandbox.system import DRIVER_VERSION, Gpu

ALIVE_FILE, OUT_OF_MEMORY_FILE = "alive", "lost"
DEFAULT_PORT = 18471  # port of the server in hosts/sandbox.yml

NVIDIA_SMI_SCRIPT = """#!/bin/sh
# A simulated GB10. Like a real one, it reports no memory usage.
case "$*" in
  *compute-apps*) cat "$0.processes" 2>/dev/null ;;
  *--query-gpu=*)
    fields=${1#--query-gpu=}; row=""; IFS=,
    for field in $fields; do
      case "$field" in
@CASES@
        *) value="[N/A]" ;;
      esac
      row="${row:+$row, }$value"
    done
    echo "$row" ;;
  *) echo "NVIDIA-SMI 580.95.05   NVIDIA GB10   Memory-Usage: Not Supported   (sandbox)" ;;
esac
"""
#: values of nvidia-smi when no fault is active, by field
GPU_VALUES = {
    "name": "NVIDIA GB10",
    "driver_version": DRIVER_VERSION,
    "temperature.gpu": "47",
    "power.draw": "38.20",
    "clocks.sm": "2411",
    "clocks.current.sm": "2411",
    "utilization.gpu": "3",
}


def read_fault_request(folder: Path) -> str:
    """Return the requested fault and the time of the request, or an empty string.

    The time distinguishes a repeated request, which applies the fault again.
    """
    path = folder / "fault"
    try:
        return f"{path.read_text().strip()} {path.stat().st_mtime_ns}"
    except FileNotFoundError:
        return ""


class Spark:
    """A simulated Spark, whose files are all in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fault_file = folder / "fault"
        self._write_files()
        is_instant = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED") == "instant"
        self.pool = MemoryPool(folder / "root/proc/meminfo", self._go_down)
        self.images = Images(self.fault, instant=is_instant)
        gpu = Gpu(folder / "bin/nvidia-smi.processes")
        shared_state = SharedState(self.pool, gpu, self.lasting_fault, self.fault_since_s, folder / "home")
        self.containers = Containers(self.images, shared_state, folder / "containers.json")
        self.ollama = Ollama(
            self.pool,
            is_busy=lambda: self.fault() == "ollama-busy",
            should_reload=lambda: self.fault() == "ollama-returns",
            starts_loaded=not (folder / "used").exists(),
        )
        (folder / "used").touch()
        self._port_occupier: subprocess.Popen[bytes] | None = None

    def fault(self) -> str:
        """Return the name of the active fault."""
        return read_fault_request(self.folder).partition(" ")[0]

    def lasting_fault(self) -> str:
        """Return the active fault, or an empty string if it is a one-time event."""
        return "" if self.fault() in cluster.EVENTS else self.fault()

    def fault_since_s(self) -> float:
        """Return the time at which the active fault was set, in seconds since the epoch."""
        try:
            return self._fault_file.stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def serve(self) -> None:
        """Start all services, write their addresses to state.json, and serve until that file is removed."""
        lock_file = (self.folder / ALIVE_FILE).open("w")
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # until this process exits; unlike a pid, a lock can't be reused
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
            "no_proxy": "127.0.0.1",  # the hub is not behind this machine's proxy
            "NO_PROXY": "127.0.0.1",
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        state_file = self.folder / "state.json"
        write_atomically(state_file, json.dumps({"pid": os.getpid(), "env": env}).encode())
        applied_file, last_request = self.folder / "applied", ""
        previously_applied = applied_file.read_text() if applied_file.exists() else ""
        applied_file.unlink(missing_ok=True)
        while state_file.exists():
            current_request = read_fault_request(self.folder)
            if current_request != last_request:
                self._apply_fault(self.fault(), was_applied=current_request == previously_applied)
                last_request, previously_applied = current_request, ""
                applied_file.write_text(current_request)
            time.sleep(0.05)
        for container in list(self.containers.all.values()):
            if container.running:
                threading.Thread(target=container.stop, daemon=True).start()

    def _go_down(self) -> None:
        """Take the host down, because its memory is exhausted. It is rebooted when a fault is set or cleared."""
        (self.folder / OUT_OF_MEMORY_FILE).touch()
        cluster.power_off(self.containers, self.folder)

    def _reboot(self) -> None:
        """Reboot a host that is down."""
        system.set_new_boot_id(self.folder / "root")
        (self.folder / OUT_OF_MEMORY_FILE).unlink()
        for container in self.containers.all.values():
            self.containers.restart_by_policy(container)

    def _apply_fault(self, fault: str, *, was_applied: bool) -> None:
        """Apply the immediate effects of a fault. Other effects appear at the next start or request.

        Args:
            fault: name of the fault, or an empty string.
            was_applied: an earlier daemon has already applied the fault, so the containers keep their saved state.
        """
        if (self.folder / OUT_OF_MEMORY_FILE).exists() and not (was_applied and fault):
            self._reboot()
        for container in () if was_applied else self.containers.all.values():
            container.has_fault = container.running or fault in START_FAULTS
            if fault in ("crash-loop", "slow-start") and container.running and container.engine is not None:
                container.engine.crash()
        if not was_applied:
            cluster.apply_event(fault, self.containers, self.folder)
        self._set_ports_occupied(fault == "port-taken")
        self._write_nvidia_smi(fault)
        self._write_link_files(fault)
        disk_free_file = self.folder / "root/sandbox/disk_free"
        if fault == "no-space":
            disk_free_file.parent.mkdir(parents=True, exist_ok=True)
            disk_free_file.write_text("1048576")
        else:
            disk_free_file.unlink(missing_ok=True)
        if fault == "half-model":
            for path in sorted((self.folder / "home").rglob("model-00007-*.safetensors"))[:1]:
                path.write_bytes(path.read_bytes()[:-1000] + bytes(1000))
        if fault == "ollama-busy":
            self._load_ollama_model(LARGE_MODEL, with_delay=False)
        if fault == "ollama-loads":
            model = MODELS["gpt-oss:20b"]
            threading.Thread(target=lambda: self._load_ollama_model(model, with_delay=True), daemon=True).start()

    def _load_ollama_model(self, model: Model, *, with_delay: bool) -> None:
        """Load a model in Ollama, as a client's request does. If too little memory is available, print the error."""
        try:
            self.ollama.load(model, with_delay=with_delay)
        except HttpError as error:
            print(f"Ollama could not load {model.name}: {error}", flush=True)

    def _set_ports_occupied(self, are_occupied: bool) -> None:
        """Start a process that occupies the server's port, if it is free, and the next port; or end that process."""
        if self._port_occupier is not None:
            self._port_occupier.communicate()  # closes its standard input, which ends it
            self._port_occupier = None
        if not are_occupied:
            return
        port_file = self.folder / "serve_port"
        port = int(port_file.read_text()) if port_file.exists() else DEFAULT_PORT
        command = [sys.executable, "-P", "-m", "sparkwright.sandbox", "occupy", str(port), str(port + 1)]
        self._port_occupier = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._port_occupier.stdout is not None
        self._port_occupier.stdout.readline()  # written once it listens

    def _write_files(self) -> None:
        self._write_nvidia_smi("")
        system.write_files(self.folder / "root")
        self._write_link_files("")
        (self.folder / "home").mkdir(exist_ok=True)

    def _write_link_files(self, fault: str) -> None:
        if number := control.link_number_of(self.folder):
            cluster.write_fabric_files(self.folder / "root", number, degraded=fault == "link-degraded")

    def _write_nvidia_smi(self, fault: str) -> None:
        values = GPU_VALUES | GPU_FAULTS.get(fault, {})
        cases = "\n".join(f'        {field}) value="{value}" ;;' for field, value in values.items())
        text = NVIDIA_SMI_SCRIPT.replace("@CASES@", cases)
        write_atomically(self.folder / "bin/nvidia-smi", text.encode(), mode=0o755)
