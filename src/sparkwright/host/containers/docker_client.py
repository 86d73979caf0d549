"""The modules' Docker client: common requests go directly to Docker's socket, all others through docker's SDK.

Importing the SDK takes 60 ms. Each request that Docker did not answer with 200 is repeated by the SDK, which raises its usual
exceptions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from sparkwright.host.containers import engine_socket
from sparkwright.transport.connection import TimedOut, TransportError

if TYPE_CHECKING:
    import docker


def errors() -> ModuleType:
    """Return docker.errors. `except errors().NotFound` imports it only after an exception."""
    import docker.errors

    return docker.errors


class Client:
    """A lazy substitute for docker.DockerClient.

    Args:
        url: address of Docker, as in DOCKER_HOST.
        timeout_s: time limit for each response.
        version: Docker's API version.
    """

    def __init__(self, url: str, timeout_s: int, version: str) -> None:
        self.url, self.timeout_s, self.version = url, timeout_s, version
        self.api = Api(self)

    @functools.cached_property
    def sdk(self) -> docker.DockerClient:
        """The SDK's client."""
        import docker

        return docker.DockerClient(base_url=self.url, timeout=self.timeout_s, version=self.version)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sdk, name)


class Api:
    """A lazy substitute for docker.APIClient."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def info(self) -> dict[str, Any]:
        """Return Docker's system information."""
        return self._get_json("/info") or self._sdk.info()

    def version(self) -> dict[str, Any]:
        """Return the versions of Docker and its components."""
        return self._get_json("/version") or self._sdk.version()

    def inspect_container(self, container: str) -> dict[str, Any]:
        """Return the inspect data of a container, by name or Id."""
        return self._get_json("/containers/{}/json", container) or self._sdk.inspect_container(container)

    def inspect_image(self, image: str) -> dict[str, Any]:
        """Return the inspect data of an image, by name or Id."""
        return self._get_json("/images/{}/json", image) or self._sdk.inspect_image(image)

    def logs(self, container: str, **options: Any) -> Any:
        """Return a container's log. A stream that does not follow the log is read without the SDK."""
        if options.get("stream") and options.get("follow") is False:
            pieces = self._stream_log(container, options)
            if pieces is not None:
                return pieces
        return self._sdk.logs(container, **options)

    def _stream_log(self, container: str, options: dict[str, Any]) -> Iterator[bytes] | None:
        """Return the pieces of a log, or None if the SDK must send the request."""
        framed = not (self.inspect_container(container).get("Config") or {}).get("Tty")
        query = {name: options[name] for name in ("since", "until", "tail") if options.get(name) is not None}
        path = self._path("/containers/{}/logs", container) + "?" + urlencode({"stdout": 1, "stderr": 1, **query})
        try:
            pieces = engine_socket.stream_log(self._client.url, path, self._client.timeout_s, framed=framed)
        except TimedOut:
            raise self._timeout_error(path) from None
        except TransportError:
            return None
        return pieces and self._translate_errors(path, pieces)

    def _translate_errors(self, path: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a response. Raises the SDK's exceptions if it is interrupted."""
        try:
            yield from pieces
        except TimedOut:
            raise self._timeout_error(path) from None
        except (TransportError, ValueError) as error:
            from requests.exceptions import ConnectionError as RequestsConnectionError

            raise RequestsConnectionError(str(error)) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sdk, name)

    @property
    def _sdk(self) -> Any:
        return self._client.sdk.api

    def _get_json(self, path: str, *names: str) -> dict[str, Any] | None:
        """Return the body of a response with status 200, or None if the SDK must send the request instead.

        Raises requests' ReadTimeout, as the SDK does, if Docker does not answer in time.
        """
        client = self._client
        if not all(names):
            return None
        path = self._path(path, *names)
        try:
            return engine_socket.get_json(client.url, path, client.timeout_s)
        except TimedOut:
            raise self._timeout_error(path) from None
        except TransportError:
            return None

    def _timeout_error(self, path: str) -> Exception:
        """Return the exception that the SDK raises when Docker does not answer in time."""
        from requests import ReadTimeout, Request

        request = Request("GET", f"http+docker://localhost{path}")
        return ReadTimeout(f"no answer within {self._client.timeout_s} s", request=request)

    def _path(self, path: str, *names: str) -> str:
        return f"/v{self._client.version}{path.format(*(quote(name, safe='/:') for name in names))}"
