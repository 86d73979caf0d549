"""Draining and returning a server in Debian's real HAProxy: who may, and what a reload keeps of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.gateway import operations, render, statistics
from sparkwright.host.gateway import admin, operating, states
from sparkwright.host.gateway.operating import Unheard
from sparkwright.project.gateway.before import fingerprint
from tests.gateway.loopback import DEADLINE_S, HOST_KEYS, KEY, Running, Server, gateway, model, running
from tests.project.test_gateway import pair

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Running]:
    servers = [Server("one"), Server("two")]
    with running(tmp_path, gateway(model("org/qwen", *servers))) as found:
        found.up("org/qwen")
        yield found
    for one in servers:
        one.shutdown()


def of_host(lab: Running, name: str) -> operating.Gateway:
    return operating.Gateway("lab", "127.0.0.1", lab.gateway.port, tls=False, server=name)


def ask(lab: Running, name: str, action: str, key: str = "") -> None:
    at, key = of_host(lab, name), key or HOST_KEYS[name]
    for one in operating.servers(at, key):
        operating.ask(at, key, action, one)


def state(lab: Running, name: str) -> str:
    (found,) = operating.servers(of_host(lab, name), HOST_KEYS["one"])
    return found.state


def test_a_host_drains_and_returns_its_own_server(lab: Running) -> None:
    ask(lab, "one", operations.DRAIN)
    assert (state(lab, "one"), state(lab, "two")) == ("draining", "up")
    assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(6)} == {"two"}
    ask(lab, "one", operations.READY)
    assert state(lab, "one") == "up"


def test_a_gateway_that_shows_another_certificate_is_told_no_key(tmp_path: Path) -> None:
    for name in ("lab", "other"):
        pair(tmp_path, name)
    (tmp_path / render.CERTIFICATE).write_text((tmp_path / "lab.pem").read_text() + (tmp_path / "lab.key").read_text())
    shown = {name: fingerprint((tmp_path / f"{name}.pem").read_text()) for name in ("lab", "other")}
    server = Server("one")
    with running(tmp_path, gateway(model("qwen", server), tls=True)) as found:
        own = operating.Gateway("lab", "127.0.0.1", found.gateway.port, True, "one", shown["lab"])
        assert [one.name for one in operating.servers(own, HOST_KEYS["one"])] == ["one"]
        with pytest.raises(Unheard, match="shows another certificate"):
            operating.servers(replace(own, certificate=shown["other"]), HOST_KEYS["one"])
    server.shutdown()


@pytest.mark.parametrize("key", [HOST_KEYS["two"], KEY, "x", "00" * 32])
def test_no_one_else_drains_it(lab: Running, key: str) -> None:
    with pytest.raises(Unheard):
        ask(lab, "one", operations.DRAIN, key)
    assert state(lab, "one") == "up"


@pytest.mark.parametrize(
    "body",
    [
        "action=drain&b=org::qwen&s=one&s=two",
        "s=two&action=drain&b=org::qwen&s=one",
        "action=drain&b=org::qwen&s=two",
        "action=drain&b=org::qwen&s=%74wo",
        "action=hchkdis&b=org::qwen&s=one",
        "action=shutdown&b=org::qwen&s=one",
        "",
    ],
)
def test_nothing_else_is_done_for_a_host(lab: Running, body: str) -> None:
    got = lab.ask("POST", operations.PATH, body.encode(), key=HOST_KEYS["one"])
    assert (got.status, got.json["error"]["code"]) == (403, "not_allowed")
    assert (state(lab, "one"), state(lab, "two")) == ("up", "up")


def test_a_hosts_key_is_none_of_a_clients(lab: Running) -> None:
    assert lab.chat({"model": "org/qwen"}, key=HOST_KEYS["one"]).status == 401
    assert lab.ask("GET", "/metrics", key=HOST_KEYS["one"]).status == 401


def test_a_reload_returns_nobody_and_takes_the_ports_that_come(lab: Running) -> None:
    ask(lab, "one", operations.DRAIN)
    other = Server("one")
    config = (lab.folder / render.CONFIG).read_text()
    before = next(one.port for one in lab.gateway.models[0].upstreams if one.name == "one")
    config = config.replace(f"127.0.0.1:{before}", f"127.0.0.1:{other.port}")
    read_anew(lab, config, "after")
    assert (state(lab, "one"), state(lab, "two")) == ("draining", "up")
    ask(lab, "one", operations.READY)
    ask(lab, "two", operations.DRAIN)
    assert lab.chat({"model": "org/qwen"}).status == 200
    assert other.seen, "the server at the port of the new configuration was not asked"
    other.shutdown()


def read_anew(lab: Running, config: str, name: str) -> None:
    """A reload with this configuration, as `gateway.deploy` does it."""
    states.keep(lab.folder, config)
    (lab.folder / render.CONFIG).write_text(config.replace("lab @DIGEST@", f"lab {name}"))
    until_s = time.monotonic() + DEADLINE_S
    while admin.running_digest(lab.folder) != name:
        assert time.monotonic() < until_s
        admin.ask(lab.folder, "reload", render.MASTER_SOCKET)  # one in the first moments of HAProxy may be lost
        time.sleep(0.3)
    states.forget(lab.folder)


def test_a_server_that_takes_another_ones_requests_gets_none_before_and_keeps_them_over_a_reload(
    tmp_path: Path,
) -> None:
    first, second = Server("one"), Server("one::interim")
    made = model("org/qwen", first)
    place = replace(made, upstreams=(replace(made.upstreams[0], interim_port=second.port),))
    with running(tmp_path, gateway(place)) as lab:
        lab.up("org/qwen")
        config = (lab.folder / render.CONFIG).read_text()
        assert state(lab, "one::interim") == "maintenance" and not second.seen
        (row,) = statistics.models(admin.rows(lab.folder))
        assert [one["host"] for one in row["servers"]] == ["one"], "an empty place is no server"
        ask(lab, "one::interim", operations.READY, HOST_KEYS["one"])
        ask(lab, "one", operations.DRAIN)
        for name in ("first", "second"):
            assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(4)} == {"one::interim"}
            read_anew(lab, config, name)
        assert (state(lab, "one"), state(lab, "one::interim")) == ("draining", "up")
        ask(lab, "one", operations.READY)
        ask(lab, "one::interim", operations.REST, HOST_KEYS["one"])
        read_anew(lab, config, "third")
        assert (state(lab, "one"), state(lab, "one::interim")) == ("up", "maintenance")
        assert {lab.chat({"model": "org/qwen"}).json["from"] for _ in range(4)} == {"one"}
    for one in (first, second):
        one.shutdown()


def test_a_gateway_that_does_not_answer_is_a_sentence(lab: Running) -> None:
    lab.process.kill()
    lab.process.wait()
    with pytest.raises(Unheard, match="does not answer"):
        ask(lab, "one", operations.DRAIN)
