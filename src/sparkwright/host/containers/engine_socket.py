"""Requests to the Docker Engine that bypass its SDK, which takes 60 ms to import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from sparkwright.errors import Failed
from sparkwright.transport import http
from sparkwright.transport.connection import ConnectFailed, MinimumRate, TimedOut, TransportError
from sparkwright.trust import bounds

DEFAULT_HOST = "unix:///var/run/docker.sock"
_FRAME_HEADER_BYTES = 8
CONTAINER_NAME_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_VERSION_PATTERN = re.compile(r"[0-9]{1,3}\.[0-9]{1,4}")
MAX_PING_BYTES = 64 * 2**10


def is_supported(docker_host: str) -> bool:
    """Return True if this engine can be queried without the SDK: over a unix socket or plain HTTP."""
    return urlsplit(docker_host or DEFAULT_HOST).scheme in ("unix", "tcp", "http")


def inspect(docker_host: str, name: str, timeout_s: float) -> dict[str, Any] | None:
    """Return the inspect data of a container, or None if no container has this name. Raises Failed if there is no answer."""
    if not CONTAINER_NAME_PATTERN.fullmatch(name):
        raise Failed("the container's name is not valid.")
    status, container = _query(docker_host, f"/containers/{quote(name)}/json", timeout_s)
    if status == 404:
        return None
    if not isinstance(container, dict):
        raise Failed(f"the Docker Engine answered {status}")
    return container


def list_containers(docker_host: str, timeout_s: float) -> list[dict[str, Any]]:
    """Return a row for each container, including stopped ones. Raises Failed if there is no answer."""
    status, rows = _query(docker_host, "/containers/json?all=1", timeout_s)
    if not isinstance(rows, list):
        raise Failed(f"the Docker Engine answered {status}")
    return [row for row in rows if isinstance(row, dict)]


def get_json(docker_host: str, path: str, timeout_s: float) -> dict[str, Any] | None:
    """Return the JSON object of a response with status 200; None for any other response. Raises TransportError."""
    response = _get(docker_host, path, timeout_s)
    data = response.json() if response.status == 200 else None
    return data if isinstance(data, dict) else None


def stream_log(docker_host: str, path: str, timeout_s: float, *, framed: bool) -> Iterator[bytes] | None:
    """Return the pieces of a container's log as they arrive; None if the status is not 200.

    Args:
        timeout_s: time limit for the first byte, and for each pause after it.
        framed: True for a container without a terminal, whose log arrives in frames.

    Raises:
        TransportError: Docker does not answer, or the log is interrupted during the iteration.
        ValueError: A frame is malformed; raised during the iteration.
    """
    url, route = _resolve_route(docker_host, path)
    stream = http.open_stream("GET", url, timeout_s=timeout_s, rate=MinimumRate(1, timeout_s), route=route)
    if stream.status != 200:
        stream.close()
        return None
    pieces = _read_stream(stream)
    return _decode_frames(pieces) if framed else pieces


def _read_stream(stream: http.Stream) -> Iterator[bytes]:
    with stream:
        yield from stream


def _decode_frames(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the contents of Docker's log frames. Raises ValueError for malformed frames.

    Each frame begins with 8 bytes: the first identifies the stream, the last 4 contain the length.
    """
    buffer, remaining = bytearray(), 0
    for piece in pieces:
        buffer += piece
        payloads = []
        while buffer and (remaining or len(buffer) >= _FRAME_HEADER_BYTES):
            if not remaining:
                if buffer[0] > 2 or any(buffer[1:4]):
                    raise ValueError("malformed frame in the log")
                remaining = int.from_bytes(buffer[4:_FRAME_HEADER_BYTES])
                del buffer[:_FRAME_HEADER_BYTES]
            payloads.append(bytes(buffer[:remaining]))
            del buffer[:remaining]
            remaining -= len(payloads[-1])
        yield b"".join(payloads)


def api_version(docker_host: str, timeout_s: float) -> str:
    """Return the newest API version that Docker supports; empty if it does not report one. Raises TransportError."""
    response = _get(docker_host, "/_ping", timeout_s, MAX_PING_BYTES)
    version = response.headers.get("api-version", "") if response.status == 200 else ""
    return version if _VERSION_PATTERN.fullmatch(version) else ""


def _resolve_route(docker_host: str, path: str) -> tuple[str, http.Route]:
    """Return the URL and the route of an API path."""
    url = urlsplit(docker_host or DEFAULT_HOST)
    if url.scheme == "unix":
        return f"http://localhost{path}", http.Route(unix=url.path)
    host = url.hostname or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{url.port or 2375}{path}", http.DIRECT


def _get(docker_host: str, path: str, timeout_s: float, max_bytes: int = bounds.MAX_ANSWER_BYTES) -> http.Response:
    url, route = _resolve_route(docker_host, path)
    return http.request("GET", url, timeout_s=timeout_s, max_bytes=max_bytes, route=route)


def _query(docker_host: str, path: str, timeout_s: float) -> tuple[int, Any]:
    """Return the status and the response's JSON, which is None unless the status is 200. Raises Failed if there is no answer."""
    try:
        response = _get(docker_host, path, timeout_s)
        return response.status, response.json() if response.status == 200 else None
    except TimedOut:
        raise Failed(f"no answer from the Docker Engine within {timeout_s:g} s") from None
    except ConnectFailed as error:
        if isinstance(error.error, PermissionError):
            raise Failed("permission denied on the Docker socket") from None
        if error.refused:
            raise Failed("the Docker Engine is not running") from None
        raise Failed(no_answer_message(error.error or error)) from None
    except TransportError as error:
        raise Failed(f"no answer from the Docker Engine: it {error}") from None


def no_answer_message(error: Exception) -> str:
    """Return the message for a Docker Engine that did not answer. Other exceptions than the system's have no readable text."""
    reason = error.strerror if isinstance(error, OSError) else None
    return f"no answer from the Docker Engine: {reason or type(error).__name__}"
