"""A Docker socket that answers every inspect with the same container."""

import json
import socketserver
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.http_servers import QuietHandler, in_background


def inspect_data(started_s: float, **state: Any) -> dict[str, Any]:
    """Return `docker inspect` of a running container that publishes no port."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime(started_s))
    return {
        "Id": "c" * 64,
        "Name": "/qwen35",
        "State": {"Status": "running", "ExitCode": 0, "StartedAt": started, **state},
        "HostConfig": {"RestartPolicy": {"Name": "unless-stopped"}, "PortBindings": {}},
    }


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """A server on a unix socket with a queue as long as Docker's, for many hosts at once."""

    request_queue_size = 64


@contextmanager
def inspect_engine(inspected: dict[str, Any]) -> Iterator[str]:
    """Run an engine that returns the same data for every inspect, and yield its DOCKER_HOST."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, json.dumps(inspected))

    with tempfile.TemporaryDirectory(prefix="engine-") as folder:  # short: a unix socket's path has a limit
        path = Path(folder) / "docker.sock"
        with in_background(UnixServer(str(path), Handler)):
            yield f"unix://{path}"
