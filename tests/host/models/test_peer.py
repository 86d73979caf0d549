"""Copying a model from a peer: to several readers at once, verified, and only with the token."""

import contextlib
import http.client
import json
import os
import select
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparkwright.errors import Failed
from sparkwright.host import peers
from sparkwright.host.models import file_transfer, peer
from sparkwright.host.runs.journal import Journal
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import ShareModel
from sparkwright.protocol.plan import Plan, Task
from sparkwright.protocol.result import Result
from sparkwright.runner.run import execute_plan
from sparkwright.secret import Secret
from sparkwright.trust.secret_names import PEER_TOKEN
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub
from tests.waiting import wait_until

FILES = {"config.json": b"{}", "sub/model-00001.safetensors": bytes(range(256)) * 20_000, "empty.json": b""}
TOKEN = Secret("one-time-token")
AUTHORIZED = {"Authorization": f"Bearer {TOKEN.reveal()}"}


def make_host(tmp_path: Path, name: str, hub_url: str) -> RecordingContext:
    (tmp_path / name).mkdir()
    return RecordingContext(tmp_path / name, hub_url=hub_url, secrets={PEER_TOKEN: TOKEN})


def model_arguments(hub: LoopbackHub) -> dict[str, Any]:
    return {"id": MODEL, "commit": COMMIT, "files": hub.lock_entries(), "dir": "~/m"}


def share_model(sender: RecordingContext, hub: LoopbackHub, **fields: Any) -> list[str]:
    result = ShareModel().run(ShareModel.Args(**{**model_arguments(hub), "bind": "127.0.0.1", **fields}), sender)
    return list(result.data["urls"])


def copy_model(receiver: RecordingContext, hub: LoopbackHub, urls: list[str], mode: Any = "auto") -> Result:
    return HfModel().run(HfModel.Args(**model_arguments(hub), from_="spark1", peer=urls, transfer=mode), receiver)


@pytest.fixture
def sender(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    """The host spark1, which has the model."""
    host = make_host(tmp_path, "spark1", hub.url)
    HfModel().run(HfModel.Args(**model_arguments(hub), transfer="plain"), host)
    hub.requests.clear()
    return host


def request_file(url: str, path: str, **headers: str) -> bytes:
    """Return the content of a file on the peer; path: below the commit."""
    request = urllib.request.Request(f"{url}/{MODEL}/resolve/{COMMIT}/{path}", headers={**AUTHORIZED, **headers})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return bytes(answer.read())


def end_sharing(urls: list[str]) -> None:
    """Connect and disconnect as a reader, after which the process that serves the files exits."""
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


def test_two_hosts_copy_a_model_without_requests_to_the_hub(
    sender: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    receivers = [make_host(tmp_path, name, "http://127.0.0.1:1") for name in ("spark2", "spark3")]
    urls = share_model(sender, hub, readers=2)
    threads = [threading.Thread(target=copy_model, args=(receiver, hub, urls)) for receiver in receivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for receiver in receivers:
        assert all((receiver.machine.home / "m" / path).read_bytes() == data for path, data in FILES.items())
    assert hub.requests == []
    wait_for_exit(urls)


@pytest.mark.parametrize("mode", ["plain", "hf_transfer"])
def test_a_proxy_is_not_used_for_a_copy_between_hosts(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    hub.files = {"model.safetensors": bytes(file_transfer.MIN_RANGES_FILE_BYTES + 1)}
    sender, receiver = make_host(tmp_path, "spark1", hub.url), make_host(tmp_path, "spark2", "http://127.0.0.1:1")
    HfModel().run(HfModel.Args(**model_arguments(hub), transfer="plain"), sender)
    urls = share_model(sender, hub)
    with contextlib.closing(LoopbackHub({})) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        copy_model(receiver, hub, urls, mode)
        assert proxy.paths == [] and proxy.tokens == []
    wait_for_exit(urls)


@pytest.mark.parametrize("is_complete", [False, True], ids=["fails before", "model complete"])
def test_a_run_that_copies_nothing_ends_the_sharing(
    sender: RecordingContext, hub: LoopbackHub, tmp_path: Path, is_complete: bool
) -> None:
    receiver = make_host(tmp_path, "spark2", "http://127.0.0.1:1")
    if is_complete:
        copy_model(receiver, hub, share_model(sender, hub))
    urls = share_model(sender, hub)
    copy = Task("t2", "Copy", "hf_model", {**model_arguments(hub), "from": "spark1", "peer": urls})
    steps = (copy,) if is_complete else (Task("t1", "Fail", "fail", {"msg": "no"}), copy)
    plan = Plan("r1", "spark2", "Test", steps, exclusive=False)
    run_journal = Journal.begin(receiver.state, plan.run_id, plan.to_json(), ())
    execute_plan(plan, receiver.machine, receiver.state, receiver.secrets, run_journal)
    wait_for_exit(urls)


def test_a_copy_that_cannot_begin_ends_the_sharing(sender: RecordingContext, hub: LoopbackHub, tmp_path: Path) -> None:
    receiver = make_host(tmp_path, "spark2", "http://127.0.0.1:1")
    (receiver.machine.home / "m").symlink_to("missing/folder")
    urls = share_model(sender, hub)
    with pytest.raises((Failed, OSError)):
        copy_model(receiver, hub, urls)
    wait_for_exit(urls)


def port_of(urls: list[str]) -> int:
    return int(urls[0].rpartition(":")[2])


def find_listener(port: int) -> int | None:
    """Return the pid of the process that listens on a port."""
    connections = psutil.net_connections("tcp")
    listeners = [row for row in connections if row.status == "LISTEN" and row.laddr and row.laddr.port == port]
    return listeners[0].pid if listeners else None


def wait_for_exit(urls: list[str]) -> None:
    wait_until(lambda: find_listener(port_of(urls)) is None, "the end of the process that serves the files")


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        (f"/{MODEL}/resolve/{COMMIT}/config.json", "another", 401),
        (f"/{MODEL}/resolve/{COMMIT}/config.json", "", 401),
        (f"/{MODEL}/resolve/{COMMIT}/../../../etc/passwd", "one-time-token", 404),
        (f"/{MODEL}/resolve/{COMMIT}/not-in-the-lock.txt", "one-time-token", 404),
        (f"/{MODEL}/resolve/{'b' * 40}/config.json", "one-time-token", 404),
    ],
)
def test_requests_without_the_token_or_for_other_files_are_refused(
    sender: RecordingContext, hub: LoopbackHub, path: str, token: str, status: int
) -> None:
    (sender.machine.home / "m/not-in-the-lock.txt").write_text("private")
    urls = share_model(sender, hub)
    request = urllib.request.Request(urls[0] + path, headers={"Authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError) as excinfo:
        urllib.request.urlopen(request, timeout=5)
    assert excinfo.value.code == status
    end_sharing(urls)


def test_an_incomplete_model_is_not_shared_and_its_missing_file_is_named(
    sender: RecordingContext, hub: LoopbackHub
) -> None:
    (sender.machine.home / "m/config.json").write_bytes(b"[]")
    with pytest.raises(Failed, match=f"{MODEL} is incomplete in .*: config.json"):
        share_model(sender, hub)


def test_a_model_is_shared_from_another_folder_with_the_same_commit(sender: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(sender, hub, dir="~/elsewhere")
    end_sharing(urls)
    wait_for_exit(urls)


def test_an_unreachable_peer_is_reported_with_its_address(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"cannot reach spark1 from here at http://127.0.0.1:1"):
        copy_model(make_host(tmp_path, "spark2", hub.url), hub, ["http://127.0.0.1:1"])


def test_a_file_that_changed_on_the_peer_is_not_used(
    sender: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    urls = share_model(sender, hub)
    (sender.machine.home / "m/config.json").write_bytes(b"[]")
    receiver = make_host(tmp_path, "spark2", hub.url)
    with pytest.raises(Failed, match="hash mismatch twice: config.json"):
        copy_model(receiver, hub, urls)
    assert not (receiver.machine.home / "m/config.json").exists()


def test_files_that_were_replaced_by_links_are_not_served(sender: RecordingContext, hub: LoopbackHub) -> None:
    secret = sender.machine.home / "secret"
    secret.write_text("private")
    urls = share_model(sender, hub)
    (sender.machine.home / "m/config.json").unlink()
    (sender.machine.home / "m/config.json").symlink_to(secret)
    (sender.machine.home / "m/sub").rename(sender.machine.home / "elsewhere")
    (sender.machine.home / "m/sub").symlink_to(sender.machine.home / "elsewhere")
    for path in ("config.json", "sub/model-00001.safetensors"):
        with pytest.raises(http.client.RemoteDisconnected):
            request_file(urls[0], path)
    end_sharing(urls)


@pytest.mark.parametrize("header", ["bytes=x", "bytes=-1", "bytes=9999999999999999999-", "bytes=5-3", "bytes=1-x"])
def test_an_invalid_range_is_answered(sender: RecordingContext, hub: LoopbackHub, header: str) -> None:
    urls = share_model(sender, hub)
    try:
        assert request_file(urls[0], "config.json", Range=header) == b"{}"
    except urllib.error.HTTPError as error:
        assert error.code == 416
    end_sharing(urls)


def test_the_number_of_open_connections_is_limited(sender: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(sender, hub)
    address = ("127.0.0.1", port_of(urls))
    connections = [socket.create_connection(address, 5) for _ in range(peers.MAX_CONNECTIONS)]
    with socket.create_connection(address, 5) as extra:
        assert extra.recv(1) == b"", "accepted beyond the limit"
    for connection in connections:
        connection.close()
    wait_until(lambda: peers.ping(urls[0] + peers.HERE_PATH, AUTHORIZED))
    end_sharing(urls)


def test_incomplete_requests_from_another_address_do_not_block_readers(
    sender: RecordingContext, hub: LoopbackHub
) -> None:
    urls = share_model(sender, hub)
    with contextlib.ExitStack() as connections:
        for _ in range(peers.MAX_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port_of(urls)), 5, source_address=("127.0.0.2", 0))
            connections.enter_context(connection)
            with contextlib.suppress(OSError):  # refused beyond the limit
                connection.sendall(b"GET /here HTTP/1.1\r\nAuthorization: Bea")
        assert peers.ping(urls[0] + peers.HERE_PATH, AUTHORIZED)
    end_sharing(urls)


class NotFoundHandler(peers.PeerHandler):
    def handle_path(self, path: str) -> None:
        self.send_empty(404)


def test_a_slow_request_is_ended_and_an_idle_reader_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "REQUEST_HEAD_TIMEOUT_S", 0.5)
    server = peers.PeerServer(
        {"token": "x", "readers": 1, "bind": "127.0.0.1", "runner_pid": os.getppid()}, NotFoundHandler
    )
    for run in (server.serve_forever, server.watch):
        threading.Thread(target=run, daemon=True).start()
    address = ("127.0.0.1", server.server_address[1])
    reader = http.client.HTTPConnection(*address, timeout=20)
    with socket.create_connection(address, 20) as slow:
        reader.request("GET", peers.HERE_PATH, headers={"Authorization": "Bearer x"})
        assert (answer := reader.getresponse()).status == 204 and answer.read() == b""
        with contextlib.suppress(ConnectionError):
            while not select.select([slow], [], [], 0.05)[0]:  # until the server closes it
                slow.sendall(b"G")
    reader.request("GET", peers.DONE_PATH, headers={"Authorization": "Bearer x"})
    assert reader.getresponse().status == 204
    reader.close()
    server.server_close()


def test_a_server_waits_longer_for_readers_that_have_not_connected_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "IDLE_TIMEOUT_S", 0.0)
    request = {"token": "x", "readers": 2, "bind": "127.0.0.1", "runner_pid": os.getppid()}
    with peers.PeerServer(request, NotFoundHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}{peers.HERE_PATH}"
        for _ in range(2):
            assert server.is_needed(), "a reader may still be pulling the image"
            assert peers.ping(url, {"Authorization": "Bearer x"})
        assert not server.is_needed()
        server.shutdown()


@pytest.mark.parametrize(("bind", "is_needed"), [("127.0.0.1", False), ("", True)])
def test_a_clusters_server_does_not_wait_after_the_run(
    monkeypatch: pytest.MonkeyPatch, bind: str, is_needed: bool
) -> None:
    """The run of `model_from` is on the reader, and the process that started the server has exited long before."""
    monkeypatch.setattr(peers, "IDLE_TIMEOUT_S", 0.0)
    request = {"token": "x", "readers": 1, "bind": "127.0.0.1", "runner_pid": -1}
    with peers.PeerServer(request, NotFoundHandler) as server:
        server.request = {**request, "bind": bind}
        assert server.is_needed() is is_needed


def test_a_redirect_of_a_peer_is_not_followed() -> None:
    with (
        contextlib.closing(LoopbackHub({})) as redirecting,
        contextlib.closing(LoopbackHub({}, address="127.0.0.2")) as other,
    ):
        redirecting.faults.moved_all = other.url
        assert not peers.ping(redirecting.url + peers.HERE_PATH, {"Authorization": "Bearer x"})
        assert (len(redirecting.tokens), other.tokens, other.paths) == (1, [], [])


def test_the_token_is_not_in_a_command_line_or_environment(sender: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(sender, hub)
    process = Path(f"/proc/{find_listener(port_of(urls))}")
    visible = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert b"sparkwright.host.models.peer" in visible
    assert TOKEN.reveal().encode() not in visible
    assert TOKEN.reveal() not in json.dumps(sender.events)
    end_sharing(urls)
