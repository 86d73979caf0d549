"""The gateway of a sandbox on a machine without HAProxy."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from collections.abc import Iterator

import pytest

from sparkwright.host.gateway import admin
from tests.e2e.alone import MODEL as SMALL
from tests.e2e.alone import one_host
from tests.e2e.conftest import fresh_desk
from tests.e2e.test_gateway import FILES, KEY, Gate
from tests.e2e.two_hosts import MODEL, Two, two_hosts
from tests.gateway.steady import Steady


@pytest.fixture(scope="module")
def without() -> Iterator[None]:
    """A PATH without haproxy."""
    with pytest.MonkeyPatch.context() as patch:
        there = [word for word in os.environ["PATH"].split(os.pathsep) if not shutil.which("haproxy", path=word)]
        patch.setenv("PATH", os.pathsep.join(there))
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        patch.setenv("GATEWAY_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def gate(without: None) -> Iterator[Gate]:
    with fresh_desk() as desk:
        desk.deployed()
        found = Gate(desk)
        assert (said := found.deploy()).code == 0, said.out + said.err
        yield found


@pytest.fixture(scope="module")
def two(without: None) -> Iterator[Two]:
    with two_hosts() as found:
        yield found


def code_of(answer: http.client.HTTPResponse) -> tuple[int, str]:
    return answer.status, json.loads(answer.read())["error"]["code"]


def test_every_command_that_shows_it_says_that_it_is_no_haproxy(gate: Gate) -> None:
    said = gate.desk.run("gateway.deploy", "--host", "box")
    assert said.code == 0 and "a stand-in for HAProxy" in said.out
    assert gate.status()["stand_in"] is True
    assert "a stand-in for HAProxy" in gate.desk.run("gateway.status", "--host", "box").out
    code, found = gate.of_fleet()
    assert (code, found["state"], found["stand_in"]) == (0, "up", True)
    assert "a stand-in, not HAProxy" in gate.desk.run("status", "--host", "sandbox").out


def test_it_answers_and_refuses_as_the_gateway_does(gate: Gate) -> None:
    answer = gate.request()
    assert (answer.status, json.loads(answer.read())["choices"][0]["finish_reason"]) == (200, "length")
    assert gate.request(stream=True, max_tokens=20).read().endswith(b"data: [DONE]\n\n")
    assert code_of(gate.request(model="another")) == (404, "model_not_found")
    assert code_of(gate.request(model=7)) == (400, "model_missing")
    assert code_of(gate.request(key="another-key-another-key")) == (401, "invalid_api_key")
    assert code_of(gate.request(padding="x" * 3_000_000)) == (413, "request_too_large")


def test_its_admin_socket_is_found_where_there_is_no_proc(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "OPEN", gate.desk.root / "no-proc")
    assert admin.stand_in(gate.desk.sandbox / "home" / FILES / "sockets")


def test_a_model_without_a_server_is_503_with_a_time_to_come_back(gate: Gate) -> None:
    server = next(container.split()[0] for container in gate.desk.containers() if not container.startswith("gateway"))
    gate.desk.docker().api.stop(server)
    try:
        answer = gate.request()
        assert answer.status == 503 and answer.getheader("Retry-After") == "5"
    finally:
        gate.desk.docker().api.start(server)
    deadline_s = time.monotonic() + 60
    while gate.request().status != 200:
        assert time.monotonic() < deadline_s


def test_other_limits_are_read_without_cutting_a_stream_and_rolled_back(gate: Gate) -> None:
    stream = gate.request(stream=True, max_tokens=150)
    first = stream.read1(10)
    gate.write(limits={"queue_s": 7})
    said = gate.deploy()
    assert said.task("Start the gateway, or have it read its configuration")["msg"] == "reloaded; no stream was cut"
    assert (first + stream.read()).endswith(b"data: [DONE]\n\n")
    assert gate.rollback().code == 0
    assert gate.status()["verified"] is True
    gate.write()
    assert gate.deploy().recap["changed"] == 0


def test_what_it_can_not_do_is_refused_before_anything_is_touched(gate: Gate) -> None:
    broken = gate.desk.root / "playbooks/gateway/deploy.yml"
    text = broken.read_text()
    broken.write_text(text.replace('files: "{{ gateway.files }}"', 'files: {haproxy.cfg: "    bind :1 ssl crt x\\n"}'))
    try:
        said = gate.deploy()
    finally:
        broken.write_text(text)
    assert said.code == 1 and "stand-in for HAProxy speaks no TLS" in said.recap["msg"]
    assert gate.request().status == 200


def test_a_rolling_restart_drains_there_and_fails_no_request(two: Two) -> None:
    steady = Steady(two.gateway, MODEL)
    with steady.running():
        steady.answered(20)
        said = two.run("restart", "--host", "box", "--json", timeout_s=300)
        steady.answered(20)
    assert said.code in (0, 4), said.out[-3000:]
    assert not steady.wrong
    assert two.states() == {"side1": "up", "side2": "up"}


def test_the_only_server_is_replaced_beside_itself_and_no_request_fails(without: None) -> None:
    with one_host() as host:
        steady = Steady(host.port, SMALL)
        with steady.running():
            steady.answered(10)
            host.changed()
            said = host.deploy()
            steady.answered(10)
        assert said.code in (0, 4), said.out[-3000:]
        assert said.task("Send requests to interim server")["msg"] == "gets requests from box"
        assert not steady.wrong
        assert host.servers() == {"sandbox": "up"}
