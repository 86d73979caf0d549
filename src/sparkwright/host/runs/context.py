"""The environment of a running module, which modules import as `host.module.Context`."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from sparkwright.errors import Failed
from sparkwright.host.containers import engine_socket
from sparkwright.host.containers.docker_client import Client
from sparkwright.host.machine import Machine
from sparkwright.host.memory.start_guard import Guards
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.secret import Secret
from sparkwright.transport.connection import TimedOut, TransportError

if TYPE_CHECKING:
    import docker

    from sparkwright.host.cluster.channel import Channel
    from sparkwright.host.containers.replacement import CreatedContainer

PROGRESS_INTERVAL_S = 0.1


class SocketDenied(Failed):
    """This user has no permission on the Docker socket."""


@dataclass
class DockerEngine:
    """The connection to this host's Docker Engine, opened on first use."""

    machine: Machine
    #: time limit for one response
    timeout_s: int = 120
    _client: docker.DockerClient | None = None

    def client(self) -> docker.DockerClient:
        """Return the client. Raises Failed if Docker does not answer or denies access."""
        if self._client is None:
            url = self.machine.docker_host or engine_socket.DEFAULT_HOST
            version = self._find_api_version(url)
            socket_client = Client(url, self.timeout_s, version) if version else None
            self._client = cast("docker.DockerClient", socket_client) if socket_client else self._open_sdk_client(url)
        return self._client

    def _find_api_version(self, url: str) -> str:
        """Return the newest API version that the engine supports; empty if the SDK must find it or report the error.

        The SDK's version "auto" would request /version, which runs containerd and runc and takes 23 ms.
        """
        try:
            return engine_socket.api_version(url, self.timeout_s) if engine_socket.is_supported(url) else ""
        except TimedOut:
            raise _engine_error(url, Failed(f"no answer within {self.timeout_s} s")) from None
        except TransportError:
            return ""

    def _open_sdk_client(self, url: str) -> docker.DockerClient:
        import docker
        from docker.errors import DockerException

        try:
            return docker.DockerClient(base_url=url, timeout=self.timeout_s, version="auto")
        except DockerException as error:
            raise _engine_error(url, error) from None


@dataclass
class RunContext:
    """The environment of a running module: the host, the state folder, events, secrets and the Docker Engine."""

    #: access to the host's files, programs, Docker, Ollama and hub
    machine: Machine
    #: sparkwright's state folder on the host
    state: StateFolder
    run_id: str
    #: called with each event
    emit: Callable[[Event], None]
    #: check mode: change nothing
    check: bool = False
    #: facts about the host, from the `facts` module
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: secrets sent with the run, by name
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    #: id of the current task
    task: str = ""
    engine: DockerEngine | None = None
    #: the channel to the other members' runs; None without a cluster
    cluster: Channel | None = None
    #: the memory guards of this run's server starts
    guards: Guards = field(default_factory=Guards)
    #: the container that this run created to replace the server but has not started yet
    created_container: CreatedContainer | None = None
    _last_progress_s: float = 0.0

    def docker(self) -> docker.DockerClient:
        """Return the client of this host's Docker Engine. Raises Failed if Docker does not answer or denies access."""
        if self.engine is None:
            self.engine = DockerEngine(self.machine)
        return self.engine.client()

    def progress(
        self, done: float, total: float = 0, *, unit: str = "", text: str = "", parts: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Report the progress of a long task, at most every PROGRESS_INTERVAL_S except for the last step.

        Args:
            total: 0 if unknown.
            unit: "bytes", "tokens", "s" or "".
            parts: files in progress, each with path, done, total, rate (bytes per second) and left_s.
        """
        now_s = time.monotonic()
        if now_s - self._last_progress_s < PROGRESS_INTERVAL_S and not (total and done >= total):
            return
        self._last_progress_s = now_s
        extra = {"parts": list(parts)} if parts else {}
        self.emit(event("progress", task=self.task, done=done, total=total, unit=unit, text=text, **extra))

    def check_failures(self) -> None:
        """Raise Failed if another member of the cluster has failed, or if the guard killed the server. Called in long waits."""
        self.guards.check()
        if self.cluster is not None and (reason := self.cluster.remote_failure()):
            raise Failed(f"{reason.rstrip('.')}.")

    def note(self, text: str, *, detail: bool = False) -> None:
        """Emit a note, which is printed on a separate line while the task runs.

        Args:
            detail: show the note only if every task is shown.
        """
        self.emit(event("note", task=self.task, text=text, **({"detail": True} if detail else {})))


def is_engine_disconnect(error: Exception) -> bool:
    """Return True if the Docker client lost its connection, for example because the engine restarts."""
    url = str(getattr(getattr(error, "request", None), "url", "") or "")
    return isinstance(error, OSError) and url.startswith("http+docker://")


def _engine_error(url: str, error: Exception) -> Failed:
    reason = str(error)
    if "Permission denied" in reason or "PermissionError" in reason:
        return SocketDenied(
            f"{getpass.getuser()} has no permission on the Docker socket {url.removeprefix('unix://')}.",
            fix=f"On the host: `sudo usermod -aG docker {getpass.getuser()}`; takes effect at next login.",
        )
    if "FileNotFoundError" in reason or "No such file" in reason or "Connection refused" in reason:
        return Failed(
            f"no answer from the Docker Engine at {url}.",
            fix="On the host: `sudo systemctl start docker`; `systemctl status docker` shows why it is down.",
        )
    return Failed(f"the Docker Engine at {url} does not answer: {reason}")
