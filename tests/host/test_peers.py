"""A model between two members of a cluster over both halves of the port: two loopback addresses, each behind a relay that counts."""

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.models.transfer import RetryPolicy
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import ShareModel
from sparkwright.protocol.result import Result
from tests.host.models.test_peer import make_host, model_arguments
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import LoopbackHub

SHARD = bytes(range(256)) * 20_000
FILES = {"config.json": b"{}", **{f"model-{n:05}.safetensors": SHARD for n in range(6)}}
TWINS = ("127.0.0.1", "127.0.0.2")


class Relay:
    """A way to a server, which counts what passes to the asking side. most: it is cut, for good, after so many bytes."""

    def __init__(self, address: str, upstream: str, most: int | None = None) -> None:
        where, _, port = upstream.removeprefix("http://").partition(":")
        self._behind, self._most, self.passed, self._open = (where, int(port)), most, 0, []
        self._listener = socket.create_server((address, 0))
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._behind)
                self._open += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Both ways, until both have ended."""
        back = threading.Thread(target=self._pass, args=(far, near), kwargs={"counted": True}, daemon=True)
        with near, far:
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, *, counted: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += len(data) if counted else 0
                if self._most is not None and self.passed > self._most:
                    self.close()
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for item in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()


@pytest.fixture
def giver(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    value = make_host(tmp_path, "spark1", hub.url)
    HfModel().run(HfModel.Args(**model_arguments(hub), transfer="plain"), value)
    hub.requests.clear()
    return value


def open_relays(giver: RecordingContext, hub: LoopbackHub, **most: int) -> list[Relay]:
    """One for each half of the port. second: after how many bytes that one is cut."""
    opened = []
    for address, limit in zip(TWINS, (None, most.get("second")), strict=True):
        served = ShareModel().run(ShareModel.Args(**model_arguments(hub), bind=address), giver)
        opened.append(Relay(address, served.data["urls"][0], limit))
    return opened


def copy_model(taker: RecordingContext, hub: LoopbackHub, urls: list[str]) -> Result:
    quick = RetryPolicy(pauses_s=(0.05,), hub_retries=0)
    return HfModel(quick).run(HfModel.Args(**model_arguments(hub), from_="spark1", peer=urls, together=True), taker)


def has_arrived(taker: RecordingContext, hub: LoopbackHub) -> bool:
    """Return True if every byte is there, and the hub got no request."""
    return not hub.requests and all(
        (taker.machine.home / "m" / path).read_bytes() == data for path, data in FILES.items()
    )


def test_bytes_come_over_both_halves_of_the_port(giver: RecordingContext, hub: LoopbackHub, tmp_path: Path) -> None:
    taker, ways = make_host(tmp_path, "spark2", "http://127.0.0.1:1"), open_relays(giver, hub)
    result = copy_model(taker, hub, [way.url for way in ways])
    assert has_arrived(taker, hub)
    assert all(way.passed >= 2 * len(SHARD) for way in ways), [way.passed for way in ways]
    assert all(address in result.msg for address in TWINS), result.msg


def test_a_half_that_is_cut_in_the_middle_does_not_fail_the_copy(
    giver: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    taker, ways = make_host(tmp_path, "spark2", "http://127.0.0.1:1"), open_relays(giver, hub, second=len(SHARD) // 2)
    copy_model(taker, hub, [way.url for way in ways])
    assert has_arrived(taker, hub)
    assert 0 < ways[1].passed < len(SHARD) * 2 and ways[0].passed >= 4 * len(SHARD)
    assert any(f"Continuing over {ways[0].url}." in note for note in taker.notes), taker.notes


def test_a_half_out_of_reach_is_said_and_the_other_is_used(
    giver: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    taker, ways = make_host(tmp_path, "spark2", "http://127.0.0.1:1"), open_relays(giver, hub)
    ways[1].close()
    copy_model(taker, hub, [way.url for way in ways])
    assert has_arrived(taker, hub)
    assert any(f"spark1 does not answer at {ways[1].url}" in note for note in taker.notes), taker.notes


def test_a_giver_serves_on_the_addresses_of_all_its_interfaces(giver: RecordingContext, hub: LoopbackHub) -> None:
    if os.geteuid():
        pytest.skip("making an interface takes root")
    subprocess.run(["ip", "link", "add", "twin-a", "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "addr", "add", "198.18.77.1/32", "dev", "twin-a"], check=True)
        subprocess.run(["ip", "link", "set", "twin-a", "up"], check=True)
        arguments: dict[str, Any] = {**model_arguments(hub), "bind": "127.0.0.1"}
        both = ShareModel().run(ShareModel.Args(**arguments, interfaces=["lo", "twin-a"]), giver)
        alone = ShareModel().run(ShareModel.Args(**arguments, interfaces=["lo", "no-such"]), giver)
    finally:
        subprocess.run(["ip", "link", "del", "twin-a"], check=True)
    assert [url.rpartition(":")[0] for url in both.data["urls"]] == ["http://127.0.0.1", "http://198.18.77.1"]
    assert [url.rpartition(":")[0] for url in alone.data["urls"]] == ["http://127.0.0.1"]
