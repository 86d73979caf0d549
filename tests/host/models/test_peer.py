"""A model from a peer: served on loopback to several readers at once, proved, and served to no other host."""

import contextlib
import http.client
import json
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
from sparkwright.host.models import peer
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.modules.model.model_files import ShareModel
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from tests.modules.context import RecordingContext
from tests.modules.loopback_hub import COMMIT, MODEL, LoopbackHub

FILES = {
    "config.json": b"{}",
    "sub/model-00001.safetensors": bytes(range(256)) * 20_000,
    "empty.json": b"",
}
TOKEN = Secret("one-time-token")


def make_host(tmp_path: Path, name: str, hub_url: str) -> RecordingContext:
    (tmp_path / name).mkdir()
    return RecordingContext(tmp_path / name, hub_url=hub_url, secrets={peers.TOKEN_NAME: TOKEN})


def model_arguments(hub: LoopbackHub) -> dict[str, Any]:
    return {"id": MODEL, "commit": COMMIT, "files": hub.lock_entries(), "dir": "~/m"}


def share_model(giver: RecordingContext, hub: LoopbackHub, **fields: Any) -> list[str]:
    result = ShareModel().run(ShareModel.Args(**{**model_arguments(hub), "bind": "127.0.0.1", **fields}), giver)
    return list(result.data["urls"])


def copy_model(taker: RecordingContext, hub: LoopbackHub, urls: list[str]) -> Result:
    return HfModel().run(HfModel.Args(**model_arguments(hub), from_="spark1", peer=urls), taker)


@pytest.fixture
def giver(tmp_path: Path, hub: LoopbackHub) -> RecordingContext:
    """The host spark1, which has the model; from now on the hub does not answer."""
    value = make_host(tmp_path, "spark1", hub.url)
    HfModel().run(HfModel.Args(**model_arguments(hub), transfer="plain"), value)
    hub.requests.clear()
    return value


def test_two_hosts_copy_at_once_and_the_hub_is_not_asked(
    giver: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    takers = [make_host(tmp_path, name, "http://127.0.0.1:1") for name in ("spark2", "spark3")]
    urls = share_model(giver, hub, readers=2)
    threads = [threading.Thread(target=copy_model, args=(taker, hub, urls)) for taker in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for taker in takers:
        assert all((taker.machine.home / "m" / path).read_bytes() == data for path, data in FILES.items())
    assert hub.requests == []
    assert has_ended(urls)


def has_ended(urls: list[str]) -> bool:
    """Return True if the process that serves the files has ended, within the time limit of its last answers."""
    port = int(urls[0].rpartition(":")[2])
    pause = threading.Event()
    for _ in range(100):
        if not any(
            net_connection.laddr and net_connection.laddr.port == port and net_connection.status == "LISTEN"
            for net_connection in psutil.net_connections("tcp")
        ):
            return True
        pause.wait(0.1)
    return False


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
def test_nobody_gets_what_is_not_his(
    giver: RecordingContext, hub: LoopbackHub, path: str, token: str, status: int
) -> None:
    (giver.machine.home / "m/not-in-the-lock.txt").write_text("private")
    urls = share_model(giver, hub)
    options = urllib.request.Request(urls[0] + path, headers={"Authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError) as excinfo:
        urllib.request.urlopen(options, timeout=5)
    assert excinfo.value.code == status
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


def test_a_neighbour_whose_copy_is_not_whole_says_what_is_missing(giver: RecordingContext, hub: LoopbackHub) -> None:
    (giver.machine.home / "m/config.json").write_bytes(b"[]")
    with pytest.raises(Failed, match=f"{MODEL} is incomplete in .*: config.json"):
        share_model(giver, hub)


def test_another_folder_that_this_commit_was_proved_in_will_do(giver: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(giver, hub, dir="~/elsewhere")
    with peer.reach_first(urls, "spark1", TOKEN):
        pass
    assert has_ended(urls)


def test_a_neighbour_out_of_reach_is_a_sentence(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"cannot reach spark1 from here at http://127.0.0.1:1"):
        copy_model(make_host(tmp_path, "spark2", hub.url), hub, ["http://127.0.0.1:1"])


def test_what_the_neighbour_changed_meanwhile_is_not_taken(
    giver: RecordingContext, hub: LoopbackHub, tmp_path: Path
) -> None:
    urls = share_model(giver, hub)
    (giver.machine.home / "m/config.json").write_bytes(b"[]")
    taker = make_host(tmp_path, "spark2", hub.url)
    with pytest.raises(Failed, match="hash mismatch twice: config.json"):
        copy_model(taker, hub, urls)
    assert not (taker.machine.home / "m/config.json").exists()


def test_what_became_a_link_since_it_was_proved_is_not_handed_out(giver: RecordingContext, hub: LoopbackHub) -> None:
    secret = giver.machine.home / "secret"
    secret.write_text("private")
    urls = share_model(giver, hub)
    (giver.machine.home / "m/config.json").unlink()
    (giver.machine.home / "m/config.json").symlink_to(secret)
    (giver.machine.home / "m/sub").rename(giver.machine.home / "elsewhere")
    (giver.machine.home / "m/sub").symlink_to(giver.machine.home / "elsewhere")
    for path in ("config.json", "sub/model-00001.safetensors"):
        options = urllib.request.Request(
            f"{urls[0]}/{MODEL}/resolve/{COMMIT}/{path}", headers={"Authorization": f"Bearer {TOKEN.reveal()}"}
        )
        with pytest.raises(http.client.RemoteDisconnected):
            urllib.request.urlopen(options, timeout=5)
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


@pytest.mark.parametrize("wanted", ["bytes=x", "bytes=-1", "bytes=9999999999999999999-", "bytes=5-3", "bytes=1-x"])
def test_a_range_that_is_none_is_answered(giver: RecordingContext, hub: LoopbackHub, wanted: str) -> None:
    urls = share_model(giver, hub)
    options = urllib.request.Request(
        f"{urls[0]}/{MODEL}/resolve/{COMMIT}/config.json",
        headers={"Authorization": f"Bearer {TOKEN.reveal()}", "Range": wanted},
    )
    try:
        with urllib.request.urlopen(options, timeout=5) as answer:
            assert answer.read() == b"{}"
    except urllib.error.HTTPError as error:
        assert error.code == 416
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


def test_strangers_who_hold_connections_open_are_turned_away_at_a_bound(
    giver: RecordingContext, hub: LoopbackHub
) -> None:
    urls = share_model(giver, hub)
    port = int(urls[0].rpartition(":")[2])
    connections = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(peers.MAX_CONNECTIONS)]
    with socket.create_connection(("127.0.0.1", port), 5) as one_more:
        assert one_more.recv(1) == b"", "it was let in"
    for item in connections:
        item.close()
    while not peers.ping(urls[0] + peers.HERE_PATH, {"Authorization": f"Bearer {TOKEN.reveal()}"}):
        pass
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


def test_half_requests_of_a_stranger_keep_no_reader_out(giver: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(giver, hub)
    port = int(urls[0].rpartition(":")[2])
    connections = []
    for _ in range(peers.MAX_CONNECTIONS):
        link = socket.create_connection(("127.0.0.1", port), 5, source_address=("127.0.0.2", 0))
        with contextlib.suppress(OSError):  # it was turned away
            link.sendall(b"GET /here HTTP/1.1\r\nAuthorization: Bea")
        connections.append(link)
    assert peers.ping(urls[0] + peers.HERE_PATH, {"Authorization": f"Bearer {TOKEN.reveal()}"})
    for link in connections:
        link.close()
    with peer.reach_first(urls, "spark1", TOKEN):
        pass


class NotFoundHandler(peers.PeerHandler):
    def handle_path(self, path: str) -> None:
        self.send_empty(404)


def test_who_drips_is_ended_and_a_reader_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "REQUEST_HEAD_S", 0.5)
    server = peers.PeerServer({"token": "x", "readers": 1, "bind": "127.0.0.1"}, NotFoundHandler)
    for run in (server.serve_forever, server.watch):
        threading.Thread(target=run, daemon=True).start()
    address = ("127.0.0.1", server.server_address[1])
    reader = http.client.HTTPConnection(*address, timeout=20)
    with socket.create_connection(address, 20) as link:
        reader.request("GET", peers.HERE_PATH, headers={"Authorization": "Bearer x"})
        assert (answer := reader.getresponse()).status == 204 and answer.read() == b""
        with contextlib.suppress(ConnectionError):
            while not select.select([link], [], [], 0.05)[0]:  # until it is ended
                link.sendall(b"G")
    reader.request("GET", peers.DONE_PATH, headers={"Authorization": "Bearer x"})
    assert reader.getresponse().status == 204
    reader.close()
    server.server_close()


def test_a_peer_sends_nobody_elsewhere(hub: LoopbackHub) -> None:
    other = LoopbackHub({}, address="127.0.0.2")
    sender = LoopbackHub({})
    try:
        sender.faults.moved_all = other.url
        assert not peers.ping(sender.url + peers.HERE_PATH, {"Authorization": "Bearer x"})
        assert (len(sender.tokens), other.tokens, other.paths) == (1, [], [])
    finally:
        sender.close()
        other.close()


def test_the_token_is_on_no_command_line_and_in_no_environment(giver: RecordingContext, hub: LoopbackHub) -> None:
    urls = share_model(giver, hub)
    port = int(urls[0].rpartition(":")[2])
    (pid,) = {
        net_connection.pid
        for net_connection in psutil.net_connections("tcp")
        if net_connection.laddr and net_connection.laddr.port == port and net_connection.pid
    }
    result = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    assert b"sparkwright.host.models.peer" in result
    assert TOKEN.reveal().encode() not in result
    assert TOKEN.reveal() not in json.dumps(giver.events)
    with peer.reach_first(urls, "spark1", TOKEN):
        pass
