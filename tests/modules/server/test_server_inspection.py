"""A host serves when its container runs and gives a token; nothing less counts, and no answer is an error."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.modules.server.server_inspection import Serving
from tests.measure.exact_server import Schedule, serving
from tests.modules.context import RecordingContext


@contextmanager
def docker_engine(container: dict[str, Any] | None, log: bytes = b"") -> Iterator[str]:
    """A minimal Docker Engine: its version, and one container with its log."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            version = {"ApiVersion": "1.43", "MinAPIVersion": "1.24"}
            named = self.path.endswith("/containers/qwen35/json")
            answer = version if self.path.endswith("/version") else container if named else None
            body = json.dumps(answer or {"message": "no such container"}).encode()
            if "/containers/qwen35/logs" in self.path:
                answer, body = {}, b"\x01\0\0\0" + len(log).to_bytes(4, "big") + log if log else b""
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"tcp://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def inspect_server(
    home: Path, url: str, *, running: bool = True, named: str = "", verified: str = "abc"
) -> dict[str, Any]:
    bindings = {"8000/tcp": [{"HostIp": "", "HostPort": url.rpartition(":")[2]}]} if url else {}
    container = {
        "Id": "abc",
        "Name": "/qwen35",
        "Image": "sha256:0",
        "Config": {},
        "State": {"Running": running, "Status": "running" if running else "exited", "StartedAt": ""},
        "HostConfig": {"PortBindings": bindings, "RestartPolicy": {"Name": "no"}},
    }
    with docker_engine(container) as docker_host:
        context = RecordingContext(home, docker_host=docker_host)
        if verified:
            context.state.write("verified", {"spec": {"name": "qwen35", "image": "a"}, "container_id": verified})
        result = Serving().run(Serving.Args(name=named, timeout_s=1), context)
    assert not result.failed
    return result.data


@pytest.mark.parametrize(("schedule", "serves"), [({}, True), ({"silent": True}, False), ({"status": 500}, False)])
def test_only_a_token_counts(tmp_path: Path, schedule: dict[str, Any], serves: bool) -> None:
    with serving(Schedule(**schedule)) as server:
        assert inspect_server(tmp_path, server.url)["serving"] is serves


def test_unverified_server_is_serving_but_not_verified(tmp_path: Path) -> None:
    with serving(Schedule()) as server:
        assert inspect_server(tmp_path, server.url, named="qwen35", verified="")["verified"] is False
        assert inspect_server(tmp_path, server.url)["verified"] is True
        assert inspect_server(tmp_path, server.url, verified="other")["verified"] is False


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"running": False}, "is not running"),
        ({"verified": "", "named": "none"}, "there is no container none"),
        ({"verified": ""}, "nothing was ever deployed"),
        ({}, "publishes no port"),
    ],
)
def test_reason_for_not_serving_is_reported(tmp_path: Path, about: dict[str, Any], why: str) -> None:
    result = inspect_server(tmp_path, "", **about)
    assert (result["serving"], why in result["why"]) == (False, True), result


def test_unreachable_docker_engine_is_not_an_error(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, docker_host=f"unix://{tmp_path}/none.sock")
    result = Serving().run(Serving.Args(name="qwen35"), context)
    assert (result.failed, result.data["serving"]) == (False, False)
