"""The survey of a host before sparkwright serves there: servers and models that others brought."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import running_server
from sparkwright.host.models import model_folders
from sparkwright.modules.system.host_inspection import Fix
from tests.modules.context import RecordingContext

MODEL, OWN = "Qwen/Qwen3-Embedding-0.6B", "~/models/embedding"
COMMIT = "a" * 40


class FakeDocker:
    """A Docker client that lists running containers with their published ports."""

    def __init__(self, inspects: list[dict[str, Any]]) -> None:
        self.inspects = {inspect["Id"]: inspect for inspect in inspects}
        self.api = self

    def containers(self) -> list[dict[str, Any]]:
        return [{"Id": name} for name in self.inspects]

    def inspect_container(self, name: str) -> dict[str, Any]:
        return self.inspects[name]


def container_attrs(
    name: str, port: int, *, labels: dict[str, str] | None = None, network: str = "", words: tuple[str, ...] = ()
) -> dict[str, Any]:
    bindings = {} if network else {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}]}
    state = {"Status": "running", "Running": True, "Pid": 1, "ExitCode": 0, "StartedAt": "", "FinishedAt": ""}
    return {
        "Id": name.ljust(64, "0"),
        "Name": f"/{name}",
        "Image": "sha256:" + "b" * 64,
        "State": state,
        "Config": {
            "Image": "vllm/vllm-openai:v0.32.0",
            "Labels": labels or {},
            "Cmd": list(words),
            "Entrypoint": None,
            "Env": [],
        },
        "HostConfig": {
            "PortBindings": bindings,
            "NetworkMode": network or "default",
            "Binds": ["/data/m:/models/m"],
            "RestartPolicy": {"Name": "no"},
        },
    }


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """A server that answers with the status and body in its `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = self.server.answer  # type: ignore[attr-defined]
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    value = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    value.answer = 200, {"data": [{"id": "qwen", "owned_by": "llamacpp"}]}  # type: ignore[attr-defined]
    threading.Thread(target=value.serve_forever, daemon=True).start()
    yield value
    value.shutdown()
    value.server_close()


def list_servers(tmp_path: Path, *containers: dict[str, Any]) -> list[running_server.ModelServer]:
    context = RecordingContext(tmp_path)
    context.docker = lambda: FakeDocker(list(containers))  # type: ignore[method-assign, assignment, return-value]
    return running_server.list_servers(context)


def test_container_that_lists_models_is_a_server(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    mine = container_attrs("mine", server.server_port, words=("--model", "/models/m"))
    (value,) = list_servers(tmp_path, mine, container_attrs("closed", 1))
    assert (value.name, value.engine, value.port, value.models) == ("mine", "llama_cpp", server.server_port, ["qwen"])
    assert value.model_dir == "/data/m"


def test_port_on_the_host_network_is_read_from_the_flags(tmp_path: Path, server: ThreadingHTTPServer) -> None:
    words = ("--port", str(server.server_port))
    assert [item.name for item in list_servers(tmp_path, container_attrs("host", 0, network="host", words=words))] == [
        "host"
    ]


@pytest.mark.parametrize(
    ("message", "labels", "servers"),
    [
        ((200, {"hello": "world"}), {}, []),
        ((200, ["data"]), {engine.ENGINE_LABEL: "vllm"}, []),
        ((404, {}), {}, []),
        ((401, {}), {}, []),
        ((401, {}), {engine.ENGINE_LABEL: "vllm"}, [[]]),
    ],
)
def test_other_web_servers_are_ignored_unless_labelled(
    tmp_path: Path,
    server: ThreadingHTTPServer,
    message: tuple[int, Any],
    labels: dict[str, str],
    servers: list[list[str]],
) -> None:
    server.answer = message  # type: ignore[attr-defined]
    assert [
        item.models for item in list_servers(tmp_path, container_attrs("web", server.server_port, labels=labels))
    ] == servers


def write_model(folder: Path, name: str = "model.safetensors", size: int = 100) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"w" * size)
    return folder


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("models/embedding", "own"),
        ("models/qwen3-embedding-0.6b", "folder"),
        ("models/Qwen/Qwen3-Embedding-0.6B", "folder"),
        ("models/Qwen--Qwen3-Embedding-0.6B", "folder"),
        (f".cache/huggingface/hub/models--Qwen--Qwen3-Embedding-0.6B/snapshots/{COMMIT}", "hub cache"),
    ],
)
def test_model_is_found_in_the_usual_places(tmp_path: Path, place: str, kind: str) -> None:
    folder = write_model(tmp_path / place)
    machine = RecordingContext(tmp_path, root=str(tmp_path)).machine
    (value,) = model_folders.find_on_disk(machine, [MODEL], [OWN])
    assert (value.dir, value.place, value.size_bytes) == (str(folder), kind, 100)


def test_folder_without_weights_or_of_another_model_is_ignored(tmp_path: Path) -> None:
    write_model(tmp_path / "models/embedding", "config.json")
    write_model(tmp_path / "models/another")
    write_model(tmp_path / ".cache/huggingface/hub/models--Qwen--Qwen3-Embedding-0.6B/snapshots/main")
    machine = RecordingContext(tmp_path, root=str(tmp_path)).machine
    assert model_folders.find_on_disk(machine, [MODEL], [OWN]) == []


# The few things that doctor may set right, done on a host whose programs write down how they were called.


def make_host(
    folder: Path, program: str, script: str, *, check: bool = False, sandbox: bool = False
) -> RecordingContext:
    path = folder / "bin" / program
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return RecordingContext(folder, check=check, sandbox=sandbox, env={"PATH": str(path.parent)})


def test_fix_runs_the_shown_command(tmp_path: Path) -> None:
    context = make_host(tmp_path, "loginctl", 'echo "$@" > "$0.called"')
    result = Fix().run(Fix.Args("linger", "o p"), context)
    assert result.changed
    assert result.data["command"] == "loginctl enable-linger 'o p'"
    assert (tmp_path / "bin/loginctl.called").read_text() == "enable-linger o p\n"


def test_check_mode_runs_no_fix(tmp_path: Path) -> None:
    context = make_host(tmp_path, "loginctl", 'echo "$@" > "$0.called"', check=True)
    assert Fix().run(Fix.Args("linger", "ops"), context).changed
    assert not (tmp_path / "bin/loginctl.called").exists()


def test_failed_fix_is_reported_with_its_output(tmp_path: Path) -> None:
    context = make_host(tmp_path, "timedatectl", "echo 'NTP not supported' >&2; exit 1")
    with pytest.raises(Failed, match="NTP not supported"):
        Fix().run(Fix.Args("clock", "ops"), context)


def test_unknown_fix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown fix 'reboot'"):
        Fix().run(Fix.Args("reboot", "ops"), make_host(tmp_path, "reboot", "exit 0"))


def test_fix_is_refused_on_the_sandbox(tmp_path: Path) -> None:
    """Its programs are the laptop's own."""
    context = make_host(tmp_path, "loginctl", 'echo "$@" > "$0.called"', sandbox=True)
    with pytest.raises(Refused, match="sandbox"):
        Fix().run(Fix.Args("linger", "ops"), context)
    assert not (tmp_path / "bin/loginctl.called").exists()
