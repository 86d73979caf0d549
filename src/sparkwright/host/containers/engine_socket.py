"""One question to the Docker Engine without its SDK, whose import costs 60 ms: what a short answer can afford."""

from __future__ import annotations

import http.client
import re
import socket
import time
from typing import Any
from urllib.parse import quote, urlsplit

from sparkwright.errors import Failed
from sparkwright.trust import bounds

DEFAULT = "unix:///var/run/docker.sock"
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")


def speaks(docker_host: str) -> bool:
    """Whether this engine can be asked without the SDK: over a unix socket, or plain HTTP."""
    return urlsplit(docker_host or DEFAULT).scheme in ("unix", "tcp", "http")


def inspect(docker_host: str, name: str, timeout_s: float) -> dict[str, Any] | None:
    """The container's inspect, or None when there is none of this name. Raises Failed when the engine gives no answer."""
    if not NAME.fullmatch(name):
        raise Failed("the container's name is not valid.")
    status, found = _asked(docker_host, f"/containers/{quote(name)}/json", timeout_s)
    if status == 404:
        return None
    if not isinstance(found, dict):
        raise Failed(f"the Docker Engine answered {status}")
    return found


def containers(docker_host: str, timeout_s: float) -> list[dict[str, Any]]:
    """A row a container, stopped ones too. Raises Failed as `inspect` does."""
    status, found = _asked(docker_host, "/containers/json?all=1", timeout_s)
    if not isinstance(found, list):
        raise Failed(f"the Docker Engine answered {status}")
    return [row for row in found if isinstance(row, dict)]


def _asked(docker_host: str, path: str, timeout_s: float) -> tuple[int, Any]:
    """(status, the answer's JSON, None for another status than 200)."""
    connection = _connection(urlsplit(docker_host or DEFAULT), timeout_s)
    try:
        connection.request("GET", path, headers={"Host": "docker"})
        answer = connection.getresponse()
        body = bounds.body_of(answer, until_s=time.monotonic() + timeout_s)
        return answer.status, bounds.json_of(body) if answer.status == 200 else None
    except TimeoutError:
        raise Failed(f"no answer from the Docker Engine within {timeout_s:g} s") from None
    except PermissionError:
        raise Failed("permission denied on the Docker socket") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise Failed("the Docker Engine is not running") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Failed(silent(error)) from None
    finally:
        connection.close()


def silent(error: Exception) -> str:
    """What is said of an engine whose client raised this: docker's own and requests' errors are no sentences."""
    return f"no answer from the Docker Engine: {type(error).__name__}"


def _connection(url: Any, timeout_s: float) -> http.client.HTTPConnection:
    if url.scheme != "unix":
        return http.client.HTTPConnection(url.hostname or "127.0.0.1", url.port or 2375, timeout=timeout_s)
    connection = _Unix("docker", timeout=timeout_s)
    connection.path = url.path
    return connection


class _Unix(http.client.HTTPConnection):
    path = ""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)
