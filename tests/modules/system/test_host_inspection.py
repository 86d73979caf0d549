"""Servers and models that a host has already, and the fixes of doctor."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkwright.engines import engine
from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import running_server
from sparkwright.host.models import model_folders
from sparkwright.modules.system.host_inspection import Fix
from tests.measure.json_server import json_server
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs

MODEL, OWN = "Qwen/Qwen3-Embedding-0.6B", "~/models/embedding"
COMMIT = "a" * 40


class FakeDocker:
    """A Docker client that lists running containers."""

    def __init__(self, inspects: list[dict[str, Any]]) -> None:
        self.inspects = {inspect["Id"]: inspect for inspect in inspects}
        self.api = self

    def containers(self) -> list[dict[str, Any]]:
        return [{"Id": container_id} for container_id in self.inspects]

    def inspect_container(self, container_id: str) -> dict[str, Any]:
        return self.inspects[container_id]


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """Yield a web server with one `answer` to all requests."""
    value = SimpleNamespace(answer=(200, {"data": [{"id": "qwen", "owned_by": "llamacpp"}]}))
    with json_server(lambda path, body: value.answer) as url:
        value.port = int(url.rpartition(":")[2])
        yield value


def list_servers(tmp_path: Path, *containers: dict[str, Any]) -> list[running_server.ModelServer]:
    context = RecordingContext(tmp_path)
    context.docker = lambda: FakeDocker(list(containers))  # type: ignore[method-assign, assignment, return-value]
    return running_server.list_servers(context)


def test_container_that_lists_models_is_a_server(tmp_path: Path, server: SimpleNamespace) -> None:
    serving = container_attrs("serving", port=server.port, Cmd=["--model", "/models/m"])
    serving["HostConfig"]["Binds"] = ["/data/m:/models/m"]
    (value,) = list_servers(tmp_path, serving, container_attrs("closed", port=1))
    assert (value.name, value.engine, value.port, value.models) == ("serving", "llama_cpp", server.port, ["qwen"])
    assert value.model_dir == "/data/m"


def test_port_on_the_host_network_is_read_from_the_flags(tmp_path: Path, server: SimpleNamespace) -> None:
    container = container_attrs("host", Cmd=["--port", str(server.port)])
    container["HostConfig"]["NetworkMode"] = "host"
    assert [item.name for item in list_servers(tmp_path, container)] == ["host"]


VLLM_LABEL = {engine.ENGINE_LABEL: "vllm"}


@pytest.mark.parametrize(
    ("answer", "labels", "models"),
    [
        ((200, {"hello": "world"}), {}, []),
        ((200, ["data"]), VLLM_LABEL, []),
        ((404, {}), {}, []),
        ((401, {}), {}, []),
        ((401, {}), VLLM_LABEL, [[]]),
    ],
)
def test_other_web_servers_are_ignored_unless_labelled(
    tmp_path: Path, server: SimpleNamespace, answer: tuple[int, Any], labels: dict[str, str], models: list[list[str]]
) -> None:
    server.answer = answer
    container = container_attrs("web", port=server.port, Labels=labels)
    assert [item.models for item in list_servers(tmp_path, container)] == models


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


RECORD_CALL = 'echo "$@" > "$0.called"'


def make_host(folder: Path, program: str, script: str, **options: Any) -> RecordingContext:
    """Return a host with one program."""
    path = folder / "bin" / program
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return RecordingContext(folder, env={"PATH": str(path.parent)}, **options)


def test_fix_runs_the_shown_command(tmp_path: Path) -> None:
    context = make_host(tmp_path, "loginctl", RECORD_CALL)
    result = Fix().run(Fix.Args("linger", "o p"), context)
    assert result.changed
    assert result.data["command"] == "loginctl enable-linger 'o p'"
    assert (tmp_path / "bin/loginctl.called").read_text() == "enable-linger o p\n"


def test_check_mode_runs_no_fix(tmp_path: Path) -> None:
    context = make_host(tmp_path, "loginctl", RECORD_CALL, check=True)
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
    """The programs of the sandbox are those of the laptop."""
    context = make_host(tmp_path, "loginctl", RECORD_CALL, sandbox=True)
    with pytest.raises(Refused, match="sandbox"):
        Fix().run(Fix.Args("linger", "ops"), context)
    assert not (tmp_path / "bin/loginctl.called").exists()
