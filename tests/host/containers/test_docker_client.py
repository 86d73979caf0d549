"""A deploy's requests to the Docker Engine over its socket: no SDK for plain reads, Docker's own errors for missing objects."""

import json
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import ImageNotFound

from sparkwright.host.containers import containers, docker_client, engine_socket
from sparkwright.host.images import image_names
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import DockerEngine, is_engine_disconnect
from tests.remote.inspected import UnixServer, inspect_data

IMAGE = {"Id": "sha256:" + "a" * 64, "Architecture": "arm64", "Os": "linux", "RepoTags": ["vllm/vllm-openai:v0.32.0"]}
INSPECTED: dict[str, Any] = {
    "/info": {"ServerVersion": "28.5.1"},
    "/containers/qwen35/json": {
        **inspect_data(time.time(), Running=True),
        "Image": IMAGE["Id"],
        "Config": {"Tty": False},
    },
    "/images/vllm/vllm-openai:v0.32.0/json": IMAGE,
}
#: as the engine frames what a container without a terminal wrote: on its standard output and error
LOG = b"\1\0\0\0\0\0\0\10started\n" + b"\2\0\0\0\0\0\0\6ready\n"
IN_A_PROCESS = """
import sys
from pathlib import Path
from sparkwright.host.containers import containers
from sparkwright.host.containers.log_reader import StartLog
from sparkwright.host.images import image_names
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import DockerEngine
client = DockerEngine(Machine(home=Path("/"), docker_host=sys.argv[1])).client()
assert client.api.info()["ServerVersion"] == "28.5.1"
assert containers.inspect(client, "qwen35")["Name"] == "/qwen35"
assert image_names.inspect(client.api, "vllm/vllm-openai:v0.32.0")["Os"] == "linux"
assert b"".join(StartLog(client, "qwen35")) == b"started\\nready\\n"
print(sorted({"docker", "requests", "urllib3"} & sys.modules.keys()))
"""


LOGS = {"/containers/qwen35/logs": LOG, "/containers/cut/logs": LOG[:-3], "/containers/odd/logs": b"plain words\n"}
INSPECTED |= {f"/containers/{name}/json": INSPECTED["/containers/qwen35/json"] for name in ("cut", "odd", "silent")}
INSPECTED["/containers/terminal/json"] = {**INSPECTED["/containers/qwen35/json"], "Config": {"Tty": True}}
LOGS["/containers/terminal/logs"] = b"plain words\n"


class Handler(BaseHTTPRequestHandler):
    """Answers as a Docker Engine with API 1.41; requests about the container `slow` get no answer."""

    def do_GET(self) -> None:
        path = self.path.removeprefix("/v1.41")
        if "/slow/" in path:
            time.sleep(30)
        if path.split("?")[0] in LOGS:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(LOGS[path.split("?")[0]])
            return
        answer = {} if path == "/_ping" else INSPECTED.get(path, {"message": f"No such image: {path}"})
        body = json.dumps(answer).encode()
        self.send_response(200 if path == "/_ping" or path in INSPECTED else 404)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *words: Any) -> None:
        pass


class EngineServer(UnixServer):
    """A server that does not wait for a silent connection."""

    daemon_threads = True
    block_on_close = False


@pytest.fixture
def docker_host() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="engine-") as folder,
        EngineServer(f"{folder}/docker.sock", Handler) as server,
    ):
        threading.Thread(target=socketserver.BaseServer.serve_forever, args=(server, 0.01), daemon=True).start()
        yield f"unix://{folder}/docker.sock"
        server.shutdown()


def connect(docker_host: str, timeout_s: int = 10) -> Any:
    return DockerEngine(Machine(home=Path("/"), docker_host=docker_host), timeout_s).client()


def test_what_is_there_is_inspected_without_the_sdk(docker_host: str) -> None:
    words = [sys.executable, "-c", IN_A_PROCESS, docker_host]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_is_not_there_is_said_as_the_sdk_says_it(docker_host: str) -> None:
    local_client = connect(docker_host)
    assert containers.inspect(local_client, "gone") is None
    assert image_names.inspect(local_client.api, "no/such:image") == {}
    with pytest.raises(ImageNotFound, match="No such image"):
        local_client.api.inspect_image("no/such:image")


def test_a_name_with_other_characters_is_one_part_of_the_path(docker_host: str) -> None:
    with pytest.raises(docker_client.errors().NotFound):
        connect(docker_host).api.inspect_container("qwen35/json?all=1 HTTP/1.1\r\nHost: x")


def test_an_engine_that_is_silent_has_gone_away(docker_host: str) -> None:
    with pytest.raises(requests.ReadTimeout) as error:
        connect(docker_host, timeout_s=1).api.inspect_container("slow")
    assert is_engine_disconnect(error.value)


def test_what_is_no_short_question_goes_to_the_sdk(docker_host: str) -> None:
    local_client = connect(docker_host)
    assert (local_client.api.api_version, local_client.api.timeout) == ("1.41", 10)


def read_log(docker_host: str, name: str) -> bytes:
    return b"".join(connect(docker_host).api.logs(name, stream=True, follow=False))


def test_a_log_is_what_the_container_wrote(docker_host: str) -> None:
    assert read_log(docker_host, "qwen35") == b"started\nready\n"
    assert read_log(docker_host, "terminal") == b"plain words\n"
    assert read_log(docker_host, "cut") == b"started\nrea", "what had come before the engine went"
    with pytest.raises(requests.ConnectionError):
        read_log(docker_host, "odd")
    with pytest.raises(docker_client.errors().NotFound):
        read_log(docker_host, "silent")


def test_frames_are_told_apart_wherever_they_are_cut() -> None:
    for size in range(1, len(LOG)):
        pieces = (LOG[at : at + size] for at in range(0, len(LOG), size))
        assert b"".join(engine_socket._decode_frames(pieces)) == b"started\nready\n"
