"""Requests to the Docker Engine over its socket: no SDK for plain reads, the SDK's errors for missing objects."""

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from docker.errors import ImageNotFound

from sparkwright.host.containers import containers, docker_client, engine_socket
from sparkwright.host.images import image_names
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import DockerEngine, is_engine_disconnect
from tests.http_servers import QuietHandler, in_background
from tests.remote.inspected import UnixServer, inspect_data

IMAGE = {"Id": "sha256:" + "a" * 64, "Architecture": "arm64", "Os": "linux", "RepoTags": ["vllm/vllm-openai:v0.32.0"]}
CONTAINER = {**inspect_data(time.time(), Running=True), "Image": IMAGE["Id"], "Config": {"Tty": False}}
#: the stream format of a container without a terminal, with a line of its standard output and one of its standard error
LOG = b"\1\0\0\0\0\0\0\10started\n" + b"\2\0\0\0\0\0\0\6ready\n"
LOGS = {
    "/containers/qwen35/logs": LOG, "/containers/cut/logs": LOG[:-3], "/containers/odd/logs": b"plain words\n",
    "/containers/terminal/logs": b"plain words\n",
}  # fmt: skip
INSPECTED: dict[str, Any] = {
    "/info": {"ServerVersion": "28.5.1"},
    "/images/vllm/vllm-openai:v0.32.0/json": IMAGE,
    **{f"/containers/{name}/json": CONTAINER for name in ("qwen35", "cut", "odd", "silent")},
    "/containers/terminal/json": {**CONTAINER, "Config": {"Tty": True}},
}
PROGRAM = """
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


class Handler(QuietHandler):
    """A Docker Engine with API 1.41. Requests about the container `slow` get no answer."""

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
        status = 200 if path == "/_ping" or path in INSPECTED else 404
        self.reply(status, json.dumps(answer), {"Api-Version": "1.41"})


class EngineServer(UnixServer):
    """A server that can stop while a request has no answer."""

    daemon_threads = True
    block_on_close = False


@pytest.fixture
def docker_host() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="engine-") as folder,
        in_background(EngineServer(f"{folder}/docker.sock", Handler)),
    ):
        yield f"unix://{folder}/docker.sock"


def connect(docker_host: str, timeout_s: int = 10) -> Any:
    return DockerEngine(Machine(home=Path("/"), docker_host=docker_host), timeout_s).client()


def test_plain_reads_do_not_import_the_sdk(docker_host: str) -> None:
    command = [sys.executable, "-c", PROGRAM, docker_host]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_missing_objects_raise_the_errors_of_the_sdk(docker_host: str) -> None:
    client = connect(docker_host)
    assert containers.inspect(client, "gone") is None
    assert image_names.inspect(client.api, "no/such:image") == {}
    with pytest.raises(ImageNotFound, match="No such image"):
        client.api.inspect_image("no/such:image")


def test_special_characters_in_a_name_are_escaped(docker_host: str) -> None:
    with pytest.raises(docker_client.errors().NotFound):
        connect(docker_host).api.inspect_container("qwen35/json?all=1 HTTP/1.1\r\nHost: x")


def test_a_silent_engine_counts_as_disconnected(docker_host: str) -> None:
    with pytest.raises(requests.ReadTimeout) as error:
        connect(docker_host, timeout_s=1).api.inspect_container("slow")
    assert is_engine_disconnect(error.value)


def test_other_attributes_are_those_of_the_sdk(docker_host: str) -> None:
    client = connect(docker_host)
    assert (client.api.api_version, client.api.timeout) == ("1.41", 10)


def read_log(docker_host: str, name: str) -> bytes:
    return b"".join(connect(docker_host).api.logs(name, stream=True, follow=False))


def test_a_log_has_the_output_of_the_container_without_framing(docker_host: str) -> None:
    assert read_log(docker_host, "qwen35") == b"started\nready\n"
    assert read_log(docker_host, "terminal") == b"plain words\n"
    assert read_log(docker_host, "cut") == b"started\nrea", "the part before the connection ended"
    with pytest.raises(requests.ConnectionError):
        read_log(docker_host, "odd")
    with pytest.raises(docker_client.errors().NotFound):
        read_log(docker_host, "silent")


def test_frames_are_decoded_from_chunks_of_any_size() -> None:
    for size in range(1, len(LOG)):
        chunks = (LOG[start : start + size] for start in range(0, len(LOG), size))
        assert b"".join(engine_socket._decode_frames(chunks)) == b"started\nready\n"


def test_error_of_the_system_is_named_by_its_text() -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert engine_socket.no_answer_message(error) == "no answer from the Docker Engine: No space left on device"
    assert (
        engine_socket.no_answer_message(requests.ConnectionError())
        == "no answer from the Docker Engine: ConnectionError"
    )
