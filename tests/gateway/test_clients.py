"""Clients with keys and limits of their own, in a real HAProxy."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.gateway import clients
from sparkwright.gateway.model import Client
from sparkwright.host.gateway import admin
from tests.gateway.loopback import DEADLINE_S, KEY, Answer, Running, Server, gateway, key_of, model, running

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")
HI = [{"role": "user", "content": "hi"}]
CLIENTS = (
    Client("alice"),
    Client("bob", models=("org/small",)),
    Client("few", requests_per_minute=3),
    Client("one", concurrent=1),
    Client("over", until_s=1_000_000_000),
    Client("soon", until_s=4_000_000_000),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    found = {name: Server(name) for name in ("one", "small")}
    yield found
    for item in found.values():
        item.shutdown()


@pytest.fixture(scope="module")
def lab(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = gateway(model("qwen", servers["one"]), model("org/small", servers["small"]), named=CLIENTS)
    with running(tmp_path_factory.mktemp("gateway"), made) as found:
        found.up("qwen", "org/small")
        yield found


def ask(lab: Running, client: str, name: str = "qwen", **more: Any) -> Answer:
    return lab.chat({"model": name, "messages": HI}, key=key_of(client), **more)


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def used(lab: Running) -> dict[str, dict[str, Any]]:
    rows = clients.used(admin.ask(lab.sockets, f"show table {clients.TABLE}"), [client.name for client in CLIENTS])
    return {row["client"]: row for row in rows}


def test_each_key_is_one_of_its_client_and_the_gateways_own_has_no_limits(lab: Running) -> None:
    assert ask(lab, "alice").status == ask(lab, "soon").status == 200
    assert lab.chat({"model": "qwen", "messages": HI}).status == 200
    header = {"x-api-key": key_of("alice")}
    assert lab.chat({"model": "qwen", "messages": HI}, key=None, **header).status == 200
    assert refused(lab.chat({"model": "qwen", "messages": HI}, key="nobody-key-0123456789")) == (401, "invalid_api_key")
    assert refused(lab.chat({"model": "qwen", "messages": HI}, key="alice")) == (401, "invalid_api_key")


def test_a_client_uses_its_models_only(lab: Running) -> None:
    assert ask(lab, "bob", "org/small").json["from"] == "small"
    assert refused(ask(lab, "bob")) == (403, "model_not_allowed")


def test_a_key_whose_time_is_over_is_refused_before_the_body(lab: Running) -> None:
    assert refused(ask(lab, "over")) == (401, "key_expired")
    assert refused(lab.ask("GET", "/v1/models", key=key_of("over"))) == (401, "key_expired")


def test_so_many_requests_a_minute_and_no_more_are_taken_and_counted(lab: Running) -> None:
    answers = [ask(lab, "few") for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].headers["retry-after"] == "5" and "in a minute" in answers[-1].json["error"]["message"]
    row = used(lab)["few"]
    assert (row["requests"], row["refused"], row["running"]) == (3, 2, 0)
    assert ask(lab, "alice").status == 200, "one client's limit is no other's"


def test_so_many_requests_at_a_time_and_no_more_are_taken(lab: Running, servers: dict[str, Server]) -> None:
    server = servers["one"]
    server.go_on.clear()
    first: list[Answer] = []
    running_one = threading.Thread(target=lambda: first.append(ask(lab, "one")))
    running_one.start()
    try:
        until_s = time.monotonic() + DEADLINE_S
        while not used(lab)["one"]["running"]:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        assert refused(ask(lab, "one")) == (429, "rate_limit_exceeded")
    finally:
        server.go_on.set()
        running_one.join(DEADLINE_S)
    assert first[0].status == 200
    assert ask(lab, "one").status == 200
    assert used(lab)["one"] == {"client": "one", "requests": 2, "running": 0, "refused": 1, "errors": 0}


def test_the_log_names_the_client_and_nothing_has_a_key(lab: Running) -> None:
    ask(lab, "alice")
    until_s = time.monotonic() + DEADLINE_S
    while "{alice}" not in (lab.folder / "log").read_text():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    told = (lab.folder / "log").read_text() + lab.ask("GET", "/metrics").body.decode()
    written = "".join(path.read_text() for path in lab.folder.iterdir() if path.is_file())
    for secret in (KEY, *(key_of(client.name) for client in CLIENTS)):
        assert secret not in told and secret not in written


def test_without_clients_nothing_of_them_is_configured(servers: dict[str, Server], tmp_path: Path) -> None:
    with running(tmp_path, gateway(model("qwen", servers["one"]))) as found:
        found.up("qwen")
        assert "clients" not in (found.folder / "haproxy.cfg").read_text()


@pytest.mark.parametrize(
    "text", ["", "# table: -clients\n", "0x1: key=alice gpc0=x\n", "0x1: key=" + "a" * 400 + " gpc0=1\n"]
)
def test_a_table_that_says_nothing_is_read_as_nothing(text: str) -> None:
    assert clients.used(text, ["alice"]) == [
        {"client": "alice", "requests": 0, "running": 0, "refused": 0, "errors": 0}
    ]
