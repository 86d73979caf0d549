"""A container of the simulated Docker Engine: it runs a simulated server in a thread, with Docker's restart policies."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright.sandbox.docker.images import Images, ServingProgram
from sparkwright.sandbox.faults import START_FAULTS
from sparkwright.sandbox.http_server import HttpError
from sparkwright.sandbox.memory import MemoryPool
from sparkwright.sandbox.serving.process import Process
from sparkwright.sandbox.system import Gpu
from sparkwright.sandbox.vllm.command_line import PrintedOutput

#: networks that every Docker Engine has; the sandbox can't create others
NETWORKS = ("bridge", "host", "none")
FIRST_BACKOFF_S = 0.1
STDOUT, STDERR = 1, 2
IMAGE_DEFAULTS = ("User", "WorkingDir", "StopSignal", "Healthcheck")  # the image's, unless the request sets them
DEFAULT_STOP_TIMEOUT_S = 10  # seconds between SIGTERM and SIGKILL
FIRST_PID = 4_200_000  # higher than any real pid on Linux
NEVER_TIME = "0001-01-01T00:00:00Z"


class SharedState:
    """The state that all containers share.

    Args:
        pool: the host's memory.
        gpu: the host's GPU.
        fault: returns the name of the active fault.
        fault_since_s: returns the time at which the fault was set, in seconds since the epoch.
        home: folder with the files of the simulated user's home.

    Attributes:
        container_by_port: running containers by published port.
        remove: removes a container; called when a container with AutoRemove has exited.
    """

    def __init__(
        self, pool: MemoryPool, gpu: Gpu, fault: Callable[[], str], fault_since_s: Callable[[], float], home: Path
    ) -> None:
        self.pool = pool
        self.gpu = gpu
        self.fault = fault
        self.fault_since_s = fault_since_s
        self.home = home
        self.container_by_port: dict[int, Container] = {}
        self.remove: Callable[[Container], None] = lambda container: None

    def real_path(self, path: str) -> str:
        """Map a path on the simulated host to the real path: all of the host's home folders are stored in `home`."""
        parts = Path(path).parts
        if len(parts) > 2 and parts[1] == "home":
            return str(self.home.joinpath(*parts[3:]))
        return str(self.home.joinpath(*parts[2:])) if parts[1:2] == ("root",) else path


def network_mode(body: dict[str, Any]) -> str:
    """Return the network mode of the request that created a container."""
    return str(body["HostConfig"].get("NetworkMode") or "default")


def network_settings(body: dict[str, Any]) -> dict[str, Any]:
    """Return the network settings as `docker inspect` shows them."""
    ports = {} if network_mode(body) == "host" else body["HostConfig"].get("PortBindings") or {}
    return {"Ports": ports, "Networks": {network_mode(body).replace("default", "bridge"): {"Aliases": None}}}


def published_ports(body: dict[str, Any], port: int) -> list[dict[str, Any]]:
    """Return a container's `Ports` as a list of containers shows them.

    Args:
        body: request that created the container.
        port: published port on the host, or 0.
    """
    is_published = port and network_mode(body) != "host"
    return [{"IP": "0.0.0.0", "PrivatePort": 8000, "PublicPort": port, "Type": "tcp"}] if is_published else []


class Container:
    """A container, created with the request `body`."""

    def __init__(self, name: str, body: dict[str, Any], image: str, images: Images, shared: SharedState) -> None:
        self.id = secrets.token_hex(32)
        self._first_pid = FIRST_PID + 2 * secrets.randbelow(100_000)
        self.name = name
        self.image = image
        self.body = body
        self.restart_policy = (body["HostConfig"].get("RestartPolicy") or {}).get("Name") or "no"
        self.created = _timestamp()
        self.status, self.exit_code, self.restart_count = "created", 0, 0
        self.started_at, self.finished_at = NEVER_TIME, NEVER_TIME
        self.logs: list[tuple[float, str, int]] = []  # time, line, stream
        self.engine: Process | None = None
        self._print_exit_code = 0  # exit code of a program that only prints
        self._images = images
        self._shared = shared
        self.stop_requested = False
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        self.created_s = time.time()
        self.has_fault = False

    def fault(self) -> str:
        """Return the fault that affects this container, or an empty string.

        A fault affects containers that are running when it is set (until `_clear_fault`) and containers created later.
        """
        return self._shared.fault() if self.has_fault or self.created_s > self._shared.fault_since_s() else ""

    @property
    def running(self) -> bool:
        return self.status in ("running", "restarting")

    def start(self) -> None:
        """Start the container. Raises HttpError if its program is missing or its port is taken."""
        if self._program() is None:
            message = "failed to create task for container: failed to create shim task: OCI runtime create failed:"
            reason = f'exec: "{self.argv()[0]}": executable file not found in $PATH: unknown'
            raise HttpError(400, f"{message} runc create failed: unable to start container process: {reason}")
        port = self._port()
        if port and (self._shared.container_by_port.get(port, self) is not self or _is_port_taken(port)):
            message = "driver failed programming external connectivity on endpoint"
            raise HttpError(500, f"{message} {self.name}: Bind for 0.0.0.0:{port} failed: port is already allocated")
        self.stop_requested, self.restart_count = False, 0
        self._stop_event.clear()
        self._shared.container_by_port[port] = self
        self._launch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = DEFAULT_STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, then SIGKILL after the timeout. Return when the container has ended."""
        self._disable_restarts()
        if self.engine is not None:
            self.engine.stop()
        if self._thread is not None:
            self._thread.join(timeout=timeout_s)
            if self._thread.is_alive():
                self.kill()
        self._clear_fault()

    def kill(self, signal: str = "SIGKILL") -> None:
        """Send a signal. With SIGKILL, return when the container has ended."""
        self._disable_restarts()
        if self.engine is None:
            return
        if signal.upper().removeprefix("SIG") not in ("KILL", "9"):
            self.engine.stop()
            return
        self.engine.kill()
        if self._thread is not None:
            self._thread.join(timeout=DEFAULT_STOP_TIMEOUT_S)
        self._clear_fault()

    def power_off(self) -> None:
        """End the container immediately, as a power loss does."""
        if self.engine is not None:
            self.engine.kill(power_off=True)
        if self._thread is not None:
            self._thread.join(timeout=DEFAULT_STOP_TIMEOUT_S)
        self._clear_fault()

    def _disable_restarts(self) -> None:
        """Prevent restarts by the restart policy, even during the pause before one."""
        self.stop_requested = True
        self._stop_event.set()

    def _clear_fault(self) -> None:
        """Clear the fault, unless it is a start fault, which persists until the container is replaced."""
        self.has_fault = self.has_fault and self._shared.fault() in START_FAULTS

    def labels(self) -> dict[str, str]:
        """Return the labels of the container and its image."""
        return {**self._images.inspect(self.image)["Config"]["Labels"], **(self.body.get("Labels") or {})}

    def argv(self) -> list[str]:
        """Return the entry point and the command, each taken from the request or else from the image.

        If the request sets an entry point, the image's command is not used.
        """
        image_config = self._images.inspect(self.image)["Config"]
        entrypoint, arguments = self.body.get("Entrypoint"), self.body.get("Cmd")
        if entrypoint:
            return [*_to_words(entrypoint), *_to_words(arguments)]
        return [*image_config["Entrypoint"], *_to_words(arguments or image_config["Cmd"])]

    def inspect(self) -> dict[str, Any]:
        """Return the container as `docker inspect` shows it."""
        image_config = self._images.inspect(self.image)["Config"]
        environment = self.body.get("Env") or []
        variable_names = {pair.partition("=")[0] for pair in environment}
        restart_policy = {"Name": self.restart_policy, "MaximumRetryCount": 0}
        host_config = {**self.body["HostConfig"], "RestartPolicy": restart_policy}
        host_config = {"ShmSize": 64 * 2**20, **host_config, "NetworkMode": network_mode(self.body)}
        log_config = host_config.get("LogConfig") or {}
        host_config["LogConfig"] = {
            "Type": log_config.get("Type") or "json-file",
            "Config": log_config.get("Config") or {},
        }
        state = {"Status": self.status, "Running": self.running, "Restarting": self.status == "restarting"}
        state |= {"Paused": False, "OOMKilled": False, "Dead": False, "Error": ""}
        state |= {"Pid": self.processes[0][0] if self.running else 0, "ExitCode": self.exit_code}
        state |= {"StartedAt": self.started_at, "FinishedAt": self.finished_at}
        config = {
            "Hostname": self.body.get("Hostname") or self.id[:12],
            "Env": environment + [pair for pair in image_config["Env"] if pair.partition("=")[0] not in variable_names],
            "Tty": False,
            "Cmd": self.body.get("Cmd"),
            "Image": self.body["Image"],
            "Entrypoint": self.body.get("Entrypoint") or image_config["Entrypoint"],
            "Labels": self.labels(),
            **{name: self.body.get(name) or image_config.get(name) for name in IMAGE_DEFAULTS},
        }
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "Created": self.created,
            "Image": self._images.inspect(self.image)["Id"],
            "RestartCount": self.restart_count,
            "Platform": "linux",
            "State": state,
            "Config": config,
            "HostConfig": host_config,
            "Mounts": self.mounts(),
            "NetworkSettings": network_settings(self.body),
        }

    def mounts(self) -> list[dict[str, Any]]:
        """Return the container's mounts as the Docker API lists them."""
        host_config = self.body["HostConfig"]
        binds = [bind.split(":") for bind in host_config.get("Binds") or ()]
        mounts = [(source, target, mode[:1] == ["ro"]) for source, target, *mode in binds]
        mounts += [
            (mount["Source"], mount["Target"], bool(mount.get("ReadOnly"))) for mount in host_config.get("Mounts") or ()
        ]
        return [
            {
                "Type": "bind",
                "Source": self._shared.real_path(source),
                "Destination": target,
                "Mode": "ro" if read_only else "",
                "RW": not read_only,
                "Propagation": "rprivate",
            }
            for source, target, read_only in mounts
        ]

    @property
    def processes(self) -> tuple[tuple[int, str], ...]:
        """Ids and names of the running container's processes; the last one uses the GPU."""
        names = self._images.repository(self.image).processes
        return tuple((self._first_pid + n, name) for n, name in enumerate(names))

    def ports(self) -> list[dict[str, Any]]:
        """Return the container's `Ports` as a list of containers shows them."""
        return published_ports(self.body, self._port() if self.running else 0)

    def to_json(self) -> dict[str, Any]:
        """Return the state that must survive a restart of the daemon."""
        identity = {"id": self.id, "name": self.name, "body": self.body, "image": self.image}
        flags = {
            "policy": self.restart_policy,
            "stopped": self.stop_requested,
            "born_s": self.created_s,
            "sick": self.has_fault,
        }
        return {**identity, **flags, "started": self.status != "created"}

    def _port(self) -> int:
        """Return the first published port, or 0."""
        for bindings in (self.body["HostConfig"].get("PortBindings") or {}).values():
            return int(bindings[0]["HostPort"])
        return 0

    def _host_path(self, path: str) -> Path:
        """Return the host path of a path in the container."""
        for bind in self.body["HostConfig"].get("Binds") or ():
            source, target = bind.split(":")[:2]
            if path == target or path.startswith(f"{target}/"):
                return Path(self._shared.real_path(source)) / path[len(target) :].lstrip("/")
        for mount in self.body["HostConfig"].get("Mounts") or ():
            if path == mount["Target"] or path.startswith(f"{mount['Target']}/"):
                return Path(mount["Source"]) / path[len(mount["Target"]) :].lstrip("/")
        return Path("/nonexistent") / path.lstrip("/")

    @property
    def _version(self) -> str:
        environment = dict(pair.partition("=")[::2] for pair in self.body.get("Env") or ())
        repository = self._images.repository(self.image)
        return environment.get(repository.version_variable) or repository.tags[self._images.local[self.image]]

    def _program(self) -> PrintedOutput | ServingProgram | None:
        return self._images.repository(self.image).resolve_program(self.argv(), self._version)

    def _launch(self) -> None:
        self.status, self.started_at = "running", _timestamp()
        program = self._program()
        if isinstance(program, PrintedOutput):
            stream = STDERR if program.code else STDOUT
            self.logs += [(time.time(), line, stream) for line in program.text.splitlines()]
            self._print_exit_code = program.code
        elif program is not None:
            self.engine = self._new_engine(program)

    def _new_engine(self, program: ServingProgram) -> Process:
        return program.process_class(
            program.argv,
            api=program.handler_class,
            version=self._version,
            log=lambda line: self.logs.append((time.time(), line, _stream_of(line))),
            host_path=self._host_path,
            listen=("127.0.0.1", self._port()),
            uses_host_network=network_mode(self.body) == "host",
            env=dict(pair.partition("=")[::2] for pair in self.body.get("Env") or ()),
            pool=self._shared.pool,
            holder=f"container {self.name}",
            fault=self.fault,
            report_gpu_memory=partial(self._shared.gpu.use, self.processes[-1][0], self.processes[-1][1]),
        )

    def _run(self) -> None:
        """Run the program, including restarts, and then release its port."""
        self._supervise()
        if self._shared.container_by_port.get(self._port()) is self:
            del self._shared.container_by_port[self._port()]
        if self.body["HostConfig"].get("AutoRemove"):
            self._shared.remove(self)

    def _supervise(self) -> None:
        """Run the program and restart it according to the restart policy, with growing pauses as in Docker."""
        pause_s = FIRST_BACKOFF_S
        while True:
            began_s = time.monotonic()
            self.exit_code = self._print_exit_code if self.engine is None else self.engine.run()
            self.finished_at = _timestamp()
            must_restart = self.restart_policy in ("always", "unless-stopped") or (
                self.restart_policy == "on-failure" and self.exit_code
            )
            if self.stop_requested or not must_restart:
                self.status = "exited"
                return
            self.status, self.restart_count = "restarting", self.restart_count + 1
            pause_s = FIRST_BACKOFF_S if time.monotonic() - began_s > 10 else min(pause_s * 2, 60)
            if self._stop_event.wait(pause_s):
                self.status = "exited"
                return
            self.exit_code = 0  # Docker resets it at the next start
            self._launch()


def _stream_of(line: str) -> int:
    """Return the stream of a log line: stdout for vLLM's loggers and access log, stderr for all others."""
    return STDOUT if line.startswith(("(", "INFO:     127.")) else STDERR


def _to_words(value: Any) -> list[str]:
    return value.split() if isinstance(value, str) else list(value or ())


def _is_port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
