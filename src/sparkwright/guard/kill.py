"""Kill a container without waiting for anything: through the Docker Engine's socket, and directly through its processes.

The request is prepared and the connection is opened in advance. A pidfd refers to the container's first process, so that another
process with a reused pid is never killed. A container is identified only by its full id.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os

SIGKILL = int(_signal.SIGKILL)
#: file of a version 2 cgroup; writing "1" to it kills all of the cgroup's processes
CGROUP_KILL_PATH = "/sys/fs/cgroup{}/cgroup.kill"
#: how long a graceful stop may take, in seconds
STOP_GRACE_S = 10


class Target:
    """A container that may be killed.

    Args:
        container_id: full id of the container.
        address: path of the Docker Engine's unix socket, or "HOST:PORT"; empty if unknown.
    """

    __slots__ = (
        "_address",
        "_cgroup",
        "_connection",
        "_is_pid_known",
        "_pidfd",
        "_stop_request",
        "id",
        "pid",
        "request",
    )

    def __init__(self, container_id: str, address: str) -> None:
        self.id, self._address = container_id, address
        self.request = _build_request(container_id, "kill?signal=KILL")
        self._stop_request = _build_request(container_id, f"stop?t={STOP_GRACE_S}")
        self.pid, self._pidfd, self._cgroup, self._is_pid_known = 0, -1, -1, False
        self._connection = self._connect()

    def hold_process(self, pid: int) -> bool:
        """Open a pidfd for the container's first process. When this process ends, the kernel ends all others in its namespace.

        Returns False, without a pidfd, if the process is not in a cgroup of this container, because the pid may have been reused.

        Args:
            pid: 0 if the process has ended.
        """
        self.release()
        self.pid, self._is_pid_known = 0, True
        if not pid:
            return False
        try:
            self._pidfd = os.pidfd_open(pid)
            rows = _read_cgroups(pid)
            if not any(self.id in row for row in rows):
                self.release()
                return False
            self.pid = pid
            path = next((row[3:] for row in rows if row.startswith("0::") and self.id in row), "")
            if path:
                self._cgroup = os.open(CGROUP_KILL_PATH.format(path), os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # the process has ended, or only root may kill a cgroup
            pass
        return self.pid > 0

    def release(self) -> None:
        """Close the pidfd and the cgroup's file, if they are open."""
        for descriptor in (self._pidfd, self._cgroup):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd = self._cgroup = -1

    @property
    def has_ended(self) -> bool:
        """True if the first process has ended, or if `hold_process` did not find it; False before `hold_process`."""
        if self._pidfd < 0:
            return self._is_pid_known
        try:
            _signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return _is_zombie(self.pid)

    def kill_by_engine(self) -> str:
        """Send the Docker Engine a request to kill the container, and return the error; empty if it was sent. Reads no answer."""
        return self._send(self.request)

    def stop_by_engine(self) -> str:
        """Send the Docker Engine a request to stop the container gracefully; see `kill_by_engine`."""
        return self._send(self._stop_request)

    def kill_processes(self) -> str:
        """Kill the container's processes directly. Return the error; empty if there is none."""
        try:
            if self._cgroup >= 0:
                os.write(self._cgroup, b"1")
            if self._pidfd < 0:
                return "its process is not known"
            _signal.pidfd_send_signal(self._pidfd, SIGKILL)
        except ProcessLookupError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _send(self, request: bytes) -> str:
        for _ in range(2):  # if the engine has been restarted since, the first connection is dead
            try:
                if self._connection is None:
                    self._connection = self._connect()
                if self._connection is None:
                    return "no connection to the Docker Engine"
                self._connection.send(request)
                return ""
            except OSError as error:
                reason = error.strerror or str(error)
                self._connection = None
        return reason

    def _connect(self) -> _socket.socket | None:
        if not self._address:
            return None
        host, _, port = self._address.rpartition(":")
        is_unix = self._address.startswith("/")
        sock = _socket.socket(_socket.AF_UNIX if is_unix else _socket.AF_INET, _socket.SOCK_STREAM)
        sock.settimeout(0.2)
        try:
            sock.connect(self._address if is_unix else (host, int(port)))
        except OSError:
            sock.close()
            return None
        return sock


def _build_request(container_id: str, verb: str) -> bytes:
    """Return an HTTP request for the Docker Engine to act on a container."""
    if not (len(container_id) == 64 and container_id.isalnum()):
        raise ValueError("no container id")
    return f"POST /containers/{container_id}/{verb} HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".encode()


def _read_cgroups(pid: int) -> list[str]:
    """Return the rows of a process's cgroup file; Docker names cgroups after the container."""
    with open(f"/proc/{pid}/cgroup") as file:
        return file.read().splitlines()


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return True
