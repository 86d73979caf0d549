"""Questions to the Docker Engine without its SDK, whose import costs 60 ms: what a short answer can afford."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from sparkwright.errors import Failed
from sparkwright.host import plain_http
from sparkwright.trust import bounds

DEFAULT = "unix:///var/run/docker.sock"
_FRAME_BYTES = 8
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_VERSION = re.compile(rb"\napi-version:[ \t]*([0-9]{1,3}\.[0-9]{1,4})[ \t]*\r?\n", re.IGNORECASE)


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


def answer(docker_host: str, path: str, timeout_s: float) -> dict[str, Any] | None:
    """The object that is answered with 200; None for any other answer. Raises OSError, ValueError."""
    status, body = plain_http.get(_address(docker_host), path, timeout_s=timeout_s)
    found = bounds.json_of(body) if status == 200 else None
    return found if isinstance(found, dict) else None


def log(docker_host: str, path: str, timeout_s: float, *, framed: bool) -> Iterator[bytes] | None:
    """What a container wrote, as it comes; None for another answer than 200. framed: the container has no terminal.

    Raises OSError, ValueError; so do its pieces.
    """
    status, pieces = plain_http.pieces(_address(docker_host), path, timeout_s=timeout_s)
    if status != 200:
        for _ in pieces:
            break
        return None
    return _payloads(pieces) if framed else pieces


def _payloads(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What stands in the engine's frames: 8 bytes before each, of which the first tells the stream, the last 4 the length."""
    rest, left = bytearray(), 0
    for piece in pieces:
        rest += piece
        found = []
        while rest and (left or len(rest) >= _FRAME_BYTES):
            if not left:
                if rest[0] > 2 or any(rest[1:4]):
                    raise ValueError("is no log")
                left = int.from_bytes(rest[4:_FRAME_BYTES])
                del rest[:_FRAME_BYTES]
            found.append(bytes(rest[:left]))
            del rest[:left]
            left -= len(found[-1])
        yield b"".join(found)


def api_version(docker_host: str, timeout_s: float) -> str:
    """The newest version of the API that the engine speaks, "" when it does not say. Raises OSError, ValueError."""
    status, fields = plain_http.head(_address(docker_host), "/_ping", timeout_s=timeout_s)
    found = _VERSION.search(fields) if status == 200 else None
    return found[1].decode() if found else ""


def _address(docker_host: str) -> plain_http.Address:
    url = urlsplit(docker_host or DEFAULT)
    return url.path if url.scheme == "unix" else (url.hostname or "127.0.0.1", url.port or 2375)


def _asked(docker_host: str, path: str, timeout_s: float) -> tuple[int, Any]:
    """(status, the answer's JSON, None for another status than 200)."""
    try:
        status, body = plain_http.get(_address(docker_host), path, timeout_s=timeout_s)
        return status, bounds.json_of(body) if status == 200 else None
    except TimeoutError:
        raise Failed(f"no answer from the Docker Engine within {timeout_s:g} s") from None
    except PermissionError:
        raise Failed("permission denied on the Docker socket") from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise Failed("the Docker Engine is not running") from None
    except (OSError, ValueError) as error:
        raise Failed(silent(error)) from None


def silent(error: Exception) -> str:
    """What is said of an engine whose client raised this: docker's own and requests' errors are no sentences."""
    return f"no answer from the Docker Engine: {type(error).__name__}"
