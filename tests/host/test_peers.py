"""Copying a model between members of a cluster over both halves of a port: two loopback addresses behind counting relays."""

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host import peers
from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import ShareModel
from sparkwright.protocol.result import Result
from tests.host.models.test_peer import make_host, model_arguments, sender
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import LoopbackHub

__all__ = ["sender"]

SHARD = bytes(range(256)) * 20_000
FILES = {"config.json": b"{}", **{f"model-{n:05}.safetensors": SHARD for n in range(6)}}
TWINS = ("127.0.0.1", "127.0.0.2")


class Relay:
    """A relay that counts the bytes it passes to clients. max_bytes: it closes for good after this number."""

    def __init__(self, address: str, upstream: str, max_bytes: int | None = None) -> None:
        upstream_address, _, port = upstream.removeprefix("http://").partition(":")
        self._upstream, self._max_bytes = (upstream_address, int(port)), max_bytes
        self.passed = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server((address, 0))
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._upstream)
                self._open += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Pass data in both directions until both have ended."""
        back = threading.Thread(target=self._pass, args=(far, near), kwargs={"counted": True}, daemon=True)
        with near, far:
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, *, counted: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += len(data) if counted else 0
                if self._max_bytes is not None and self.passed > self._max_bytes:
                    self.close()
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for item in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()


def test_a_busy_peer_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer to the first request does not come in time."""
    monkeypatch.setattr(peers, "REACH_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_second_request() -> None:
            late, _ = listener.accept()
            for _ in range(2):  # the second attempt, and the notice that the copy has ended
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            late.close()

        thread = threading.Thread(target=answer_second_request)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with peers.reach_first([url], "spark2", None, "download the model") as reached:
            assert reached == url
        thread.join()


@pytest.fixture
def receiver(tmp_path: Path) -> RecordingContext:
    """The host spark2, which cannot reach a hub."""
    return make_host(tmp_path, "spark2", "http://127.0.0.1:1")


def open_relays(sender: RecordingContext, hub: LoopbackHub, *, second_max_bytes: int | None = None) -> list[Relay]:
    """Serve the model at both addresses, each behind a relay."""
    relays = []
    for address, max_bytes in zip(TWINS, (None, second_max_bytes), strict=True):
        shared = ShareModel().run(ShareModel.Args(**model_arguments(hub), bind=address), sender)
        relays.append(Relay(address, shared.data["urls"][0], max_bytes))
    return relays


def copy_model(receiver: RecordingContext, hub: LoopbackHub, relays: list[Relay]) -> Result:
    """Copy the model over the relays, and check that it is complete and came from none of the hub's files."""
    urls = [relay.url for relay in relays]
    quick = RetryPolicy(pauses_s=(0.05,), hub_retries=0)
    result = HfModel(quick).run(
        HfModel.Args(**model_arguments(hub), from_="spark1", peer=urls, together=True), receiver
    )
    assert all((receiver.machine.home / "m" / path).read_bytes() == data for path, data in FILES.items())
    assert hub.requests == []
    return result


def test_a_model_is_copied_over_both_halves_of_the_port(
    sender: RecordingContext, receiver: RecordingContext, hub: LoopbackHub
) -> None:
    relays = open_relays(sender, hub)
    result = copy_model(receiver, hub, relays)
    assert all(relay.passed >= 2 * len(SHARD) for relay in relays), [relay.passed for relay in relays]
    assert all(address in result.msg for address in TWINS), result.msg


def test_a_copy_continues_if_one_half_fails(
    sender: RecordingContext, receiver: RecordingContext, hub: LoopbackHub
) -> None:
    first, second = relays = open_relays(sender, hub, second_max_bytes=len(SHARD) // 2)
    copy_model(receiver, hub, relays)
    assert 0 < second.passed < len(SHARD) * 2 and first.passed >= 4 * len(SHARD)
    assert any(f"Continuing over {first.url}." in note for note in receiver.notes), receiver.notes


def test_an_unreachable_half_is_reported_and_the_other_is_used(
    sender: RecordingContext, receiver: RecordingContext, hub: LoopbackHub
) -> None:
    _, second = relays = open_relays(sender, hub)
    second.close()
    copy_model(receiver, hub, relays)
    assert any(f"spark1 does not answer at {second.url}" in note for note in receiver.notes), receiver.notes


def test_a_model_is_served_on_the_addresses_of_all_interfaces(sender: RecordingContext, hub: LoopbackHub) -> None:
    if os.geteuid():
        pytest.skip("creating an interface needs root")
    interface = f"twin{os.getpid()}"  # an interrupted run leaves its interface
    subprocess.run(["ip", "link", "add", interface, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", "198.18.77.1/32", "dev", interface], check=True)
        subprocess.run(["ip", "link", "set", interface, "up"], check=True)
        arguments: dict[str, Any] = {**model_arguments(hub), "bind": "127.0.0.1"}
        both, loopback_only = (
            ShareModel().run(ShareModel.Args(**arguments, interfaces=["lo", name]), sender).data["urls"]
            for name in (interface, "no-such")
        )
    finally:
        subprocess.run(["ip", "link", "del", interface], check=True)
    assert [url.rpartition(":")[0] for url in both] == ["http://127.0.0.1", "http://198.18.77.1"]
    assert [url.rpartition(":")[0] for url in loopback_only] == ["http://127.0.0.1"]
