"""Ollama, simulated with its known faults: lost unloads, busy models, blocking calls."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed
from sparkwright.host import machine, ollama
from sparkwright.host.ollama import LoadedModel, Ollama
from sparkwright.modules.ollama import OllamaPs, OllamaReload, OllamaUnload
from sparkwright.units import GIB
from tests.measure.json_server import json_server
from tests.modules.context import RecordingContext


@dataclass
class FakeOllama:
    """The state of a simulated Ollama."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)  #: loaded models
    lost: int = 0  #: number of further unloads without effect
    busy: set[str] = field(default_factory=set)  #: models in use by a request
    blocked: threading.Event = field(default_factory=threading.Event)  #: set while the list of models does not answer
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def add_model(self, name: str, size_gib: int = 20, **more: Any) -> None:
        self.models[name] = {"name": name, "size": size_gib * GIB, "expires_at": "2026-11-21T08:00:00Z", **more}

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if path == "/api/version":
            return 200, {"version": "0.32.15"}
        if path == "/api/ps":
            while self.blocked.is_set():
                time.sleep(0.01)
            return 200, {"models": list(self.models.values())}
        assert body is not None
        self.requests.append(body)
        if body.get("keep_alive") != 0:
            if body["model"] == "unknown":
                return 404, {"error": "model 'unknown' not found"}
            self.add_model(body["model"])
        elif self.lost:
            self.lost -= 1
        elif body["model"] not in self.busy:
            self.models.pop(body["model"], None)
        return 200, {"model": body["model"], "done": True, "done_reason": "unload"}


@pytest.fixture
def fake_ollama() -> Iterator[FakeOllama]:
    value = FakeOllama()
    with json_server(value.answer) as value.url:
        yield value
        value.blocked.clear()


@pytest.fixture
def context(tmp_path: Path, fake_ollama: FakeOllama) -> RecordingContext:
    return RecordingContext(tmp_path, ollama_url=fake_ollama.url, sandbox=True)


def test_all_models_are_unloaded_and_named(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.add_model("a")
    fake_ollama.add_model("b")
    result = OllamaUnload().run(OllamaUnload.Args(), context)
    assert (result.changed, result.data["unloaded"], fake_ollama.models) == (True, ["a", "b"], {})


def test_unload_is_retried(fake_ollama: FakeOllama, context: RecordingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama, "UNLOAD_RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(ollama, "POLL_S", 0.02)
    fake_ollama.add_model("a")
    fake_ollama.lost = 2
    OllamaUnload().run(OllamaUnload.Args(), context)
    assert (fake_ollama.models, len(fake_ollama.requests)) == ({}, 3)


def test_busy_model_fails_with_its_name(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.add_model("a")
    fake_ollama.busy = {"a"}
    with pytest.raises(Failed, match="keeps a in memory: a request is using it"):
        OllamaUnload().run(OllamaUnload.Args(timeout_s=0.3), context)


def test_blocked_list_of_models_is_reported(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.blocked.set()
    assert ollama.inspect(context, timeout_s=0.2).hanging_instances
    result = OllamaPs().run(OllamaPs.Args(timeout_s=0.2), context)
    assert "does not answer: it is either loading a model or hung" in result.msg


def test_missing_ollama_changes_nothing(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, ollama_url="http://127.0.0.1:1", sandbox=True)
    assert OllamaUnload().run(OllamaUnload.Args(), context).changed is False
    assert OllamaPs().run(OllamaPs.Args(), context).msg == "Ollama is not running"


def test_mode_leave_sends_no_request(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.add_model("a")
    assert OllamaUnload().run(OllamaUnload.Args(mode="leave"), context).changed is False
    assert (list(fake_ollama.models), fake_ollama.requests) == (["a"], [])


def test_remote_ollama_holds_no_local_memory(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path, ollama_url="http://192.0.2.7:11434", sandbox=True)
    assert ollama.inspect(context).running_instances == ()


def test_unloaded_models_are_reloaded_if_they_fit(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.add_model("small", 1, context_length=8192, expires_at="2318-05-01T00:00:00Z")
    fake_ollama.add_model("large", 900)
    unloaded = OllamaUnload().run(OllamaUnload.Args(), context).data["models"]
    fake_ollama.requests.clear()
    result = OllamaReload().run(OllamaReload.Args(models=unloaded, reserve_gib=0), context)
    assert (result.data["loaded"], result.data["left_out"]) == (["small"], ["large"])
    assert fake_ollama.requests == [{"model": "small", "stream": False, "options": {"num_ctx": 8192}, "keep_alive": -1}]
    assert OllamaReload().run(OllamaReload.Args(models=unloaded[:1], reserve_gib=0), context).changed is False


def test_model_of_unknown_size_is_not_reloaded(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    fake_ollama.add_model("odd", size=2**60)
    assert "odd, size unknown (" in OllamaPs().run(OllamaPs.Args(), context).msg
    result = OllamaUnload().run(OllamaUnload.Args(), context)
    assert result.msg == "odd: size unknown" and result.diff[0].before == "loaded, size unknown"
    fake_ollama.requests.clear()
    reload = OllamaReload().run(OllamaReload.Args(models=result.data["models"], reserve_gib=0), context)
    assert (reload.data["loaded"], reload.data["left_out"], fake_ollama.requests) == ([], ["odd"], [])
    assert "not reloading odd: its size is unknown" in "".join(item.get("text", "") for item in context.events)


def test_uninstalled_model_is_not_reloaded(fake_ollama: FakeOllama, context: RecordingContext) -> None:
    assert Ollama(fake_ollama.url).load(LoadedModel("unknown", 1)) is False


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        (":1234", "http://127.0.0.1:1234"),
        ("[::]:99", "http://127.0.0.1:99"),
        ("[::1]", "http://[::1]:11434"),
        ("10.0.0.2", "http://10.0.0.2:11434"),
        ("http://box", "http://box:80"),
        ("https://box.example", "https://box.example:443"),
    ],
)
def test_ollama_host_is_parsed_like_ollama_does(host: str, url: str) -> None:
    assert machine.ollama_url(host) == url


def test_service_url_is_read_from_its_unit(tmp_path: Path) -> None:
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(
        "#!/bin/sh\necho ActiveState=active\necho MainPID=77\necho 'Environment=A=1 OLLAMA_HOST=0.0.0.0:8888 B=2'\n"
    )
    systemctl.chmod(0o755)
    context = RecordingContext(
        tmp_path, docker_host="unix:///nowhere", env={"PATH": f"{systemctl.parent}:/usr/bin:/bin"}
    )
    instances = ollama.list_instances(context)
    assert ("http://127.0.0.1:8888", "service", 77) in [(item.url, item.kind, item.pid) for item in instances]


def network(name: str, address: str) -> dict[str, Any]:
    return {"Networks": {name: {"IPAddress": address}}}


@pytest.mark.parametrize(
    ("row", "url"),
    [
        ({"Ports": [{"PrivatePort": 11434, "PublicPort": 11500, "IP": "0.0.0.0"}]}, "http://127.0.0.1:11500"),
        ({"Ports": [{"PrivatePort": 11434, "PublicPort": 11500, "IP": "::"}]}, "http://127.0.0.1:11500"),
        ({"Ports": [{"PrivatePort": 11434, "PublicPort": 80, "IP": "192.168.1.5"}]}, "http://192.168.1.5:80"),
        (
            {"Ports": [{"PrivatePort": 11434}], "NetworkSettings": network("web", "172.18.0.3")},
            "http://172.18.0.3:11434",
        ),
        ({"NetworkSettings": network("host", "")}, "http://127.0.0.1:11434"),
    ],
    ids=["all addresses", "all addresses, IPv6", "one address", "not published", "host network"],
)
def test_container_url_is_reachable_from_the_host(row: dict[str, Any], url: str) -> None:
    assert ollama.container_url(row) == url
