"""Hosts are found in ssh's files and by an mDNS query; its answers are untrusted."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.remote import discovery


def encode_name(text: str) -> bytes:
    return b"".join(bytes([len(word)]) + word.encode() for word in text.split(".")) + b"\0"


def encode_record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack("!HHIH", kind, 0x8001, 120, len(data)) + data


def encode_answer(*rows: bytes) -> bytes:
    return struct.pack("!6H", 0, 0x8400, 0, len(rows), 0, 0) + b"".join(rows)


def ssh_answer(host: str) -> bytes:
    """Return avahi's answer for a host with ssh."""
    service = f"{host}._ssh._tcp.local"
    return encode_answer(
        encode_record(encode_name("_ssh._tcp.local"), 12, encode_name(service)),
        encode_record(encode_name(service), 33, struct.pack("!3H", 0, 0, 22) + encode_name(f"{host}.local")),
        encode_record(encode_name(f"{host}.local"), 1, bytes([192, 168, 1, 20])),
    )


class Responder:
    """A responder on loopback that answers a query with some packets."""

    def __init__(self, packets: list[bytes]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()
        self.packets, self.query = packets, b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self.query, client = self.socket.recvfrom(9000)
            for packet in self.packets:
                self.socket.sendto(packet, client)


@pytest.fixture
def responders() -> Iterator[list[Responder]]:
    running: list[Responder] = []
    yield running
    for item in running:
        item.socket.close()


def discover(responders: list[Responder], *packets: bytes) -> list[str]:
    responders.append(Responder(list(packets)))
    return discovery.discover_hosts(responders[-1].address, listen_s=0.5)


def test_hosts_with_ssh_and_workstations_are_found(responders: list[Responder]) -> None:
    service = "_workstation._tcp.local"
    name = encode_name(f"spark-9f9f [02:42:ac:11:00:02].{service}")
    workstation = encode_answer(encode_record(encode_name(service), 12, name))
    found = discover(responders, ssh_answer("spark-1a2b"), workstation, ssh_answer("Spark-1A2B"))
    assert found == ["spark-1a2b.local", "spark-9f9f.local"]
    assert encode_name("_ssh._tcp.local") + struct.pack("!HH", 12, 0x8001) in responders[-1].query


def test_invalid_names_and_packets_are_ignored(responders: list[Responder]) -> None:
    invalid = [ssh_answer("-oProxyCommand=x"), ssh_answer("a b"), ssh_answer("x\x1b]52"), b"\0" * 12, b"x"]
    pointer_loop = struct.pack("!6H", 0, 0x8400, 0, 1, 0, 0) + b"\xc0\x0c"
    assert discover(responders, *invalid, pointer_loop, ssh_answer("spark-2")) == ["spark-2.local"]


def test_compressed_name_is_parsed() -> None:
    service = encode_record(encode_name("_ssh._tcp.local"), 12, b"\x05spark\xc0\x0c")
    assert discovery.parse_records(encode_answer(service)) == [("_ssh._tcp.local", 12, "spark._ssh._tcp.local")]


def test_hosts_of_the_configuration_and_included_files(tmp_path: Path) -> None:
    config = 'Include conf.d/* config\nHost spark1 "gx10-3f" *.lab !bastion\n  HostName 10.0.0.1\nMatch host x\nhost=late # no\n'
    (tmp_path / "config").write_text(config)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/a").write_text("Host included -oProxyCommand=x\n")
    assert discovery.hosts_in_config(tmp_path / "config") == ["included", "spark1", "gx10-3f", "late"]
    assert discovery.hosts_in_config(tmp_path / "none") == []


def test_names_of_sparks_come_first_without_unrelated_known_hosts(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host web spark1\n")
    names = ("github.com,140.82.121.3", "spark-7", "Spark1", "|1|a|b", "@revoked spark-8")
    (tmp_path / "known_hosts").write_text("".join(f"{name} ssh-ed25519 A\n" for name in names))
    candidates = discovery.find_candidates(tmp_path, find_network_hosts=lambda: ["nas.local", "spark-9.local"])
    assert [(item.address, item.source) for item in candidates] == [
        ("spark1", "ssh configuration"),
        ("spark-9.local", "mDNS"),
        ("spark-7", "known_hosts"),
        ("web", "ssh configuration"),
        ("nas.local", "mDNS"),
    ]
