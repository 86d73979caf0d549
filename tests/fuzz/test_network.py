"""Damaged mDNS answers, routes to a peer, files of ssh, and output of `ssh -G` and `ssh-keygen -F`."""

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from sparkwright.doctor import fabric
from sparkwright.doctor.host import Host
from sparkwright.remote import discovery
from sparkwright.remote.ssh import host_keys, ssh_config
from tests.fuzz.harness import damaged_texts, feed, feed_texts
from tests.modules.context import RecordingContext
from tests.remote.ssh_cases import CASES
from tests.remote.test_discovery import encode_answer, encode_record

SSH, HOST = b"\x04_ssh\x04_tcp\x05local\x00", b"\x05spark\xc0\x16"

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIPBJwYY+YKZvoKv9atSZmMekoPfwK5e8yHmbdSREEoQC"
HEADS = ("IdentityFile %d/.ssh/%h_%r\n", "ProxyJump ann@a:22,b@[::1]:22\n", "KnownHostsCommand /bin/x '%H' %K\n", "")


PACKETS = [
    encode_answer(
        encode_record(SSH, 12, b"\x05spark\xc0\x0c"),
        encode_record(b"\x05spark\xc0\x0c", 33, struct.pack("!3H", 0, 0, 22) + b"\x0aspark-1a2b\x05local\x00"),
        encode_record(b"\x0aspark-1a2b\x05local\x00", 1, bytes([192, 168, 1, 7])),
    ),
    encode_answer(
        encode_record(b"\x0c_workstation\x04_tcp\x05local\x00", 12, b"\x18spark [02:42:ac:11:00:02]\xc0\x0c")
    ),
]
CONFIG = (
    b'Host spark1 gx10-?? !bad\n  HostName 192.0.2.7\nInclude ~/.ssh/more config.d/*\nMatch all\nHost = "two words" b\n'
)
KNOWN = b"spark1,192.0.2.7 ssh-ed25519 AAAA\n|1|abc=|def= ssh-rsa AAAA\n@revoked old ssh-rsa AAAA\n[host]:2222 ssh-rsa AAAA\n"
ROUTE = [{"dst": "192.168.100.2", "dev": "enp1s0f1np1", "prefsrc": "192.168.100.1", "flags": []}]


def test_mdns_answers() -> None:
    def read(packet: bytes) -> None:
        hosts = discovery._hosts_in_answer(packet[: discovery.MAX_PACKET_BYTES])
        assert all(discovery.LOCAL_NAME_PATTERN.fullmatch(name) for name in hosts)

    feed(read, damaged_texts(PACKETS))


@pytest.mark.parametrize(("file", "seed"), [("config", CONFIG), ("known_hosts", KNOWN)])
def test_ssh_files(file: str, seed: bytes, tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        (tmp_path / file).write_bytes(data)
        for candidate in discovery.find_candidates(tmp_path, list):
            assert discovery.SSH_HOST_NAME_PATTERN.fullmatch(candidate.address), candidate

    feed(read, damaged_texts([seed]))


def test_route_to_a_peer(tmp_path: Path) -> None:
    host = Host(RecordingContext(tmp_path, root=str(tmp_path)), "user")

    def read(text: str) -> None:
        host.read_output = lambda *argv: text  # type: ignore[method-assign]
        fabric._find_route(host, "192.168.100.2").get("dev")

    feed_texts(read, [json.dumps(ROUTE).encode(), b"5", b"[5]"])


def read_seeds(folder: Path) -> list[bytes]:
    """Return the output of the real ssh for some configurations of CASES."""
    if shutil.which("ssh") is None:
        pytest.skip("needs ssh")
    outputs = []
    for number, head in enumerate(HEADS):
        config = folder / f"config{number}"
        config.write_text(head + next(case.config for case in CASES[number * 7 :] if "<" not in case.config) + "\n")
        command = ["ssh", "-F", str(config), "-G", "spark1"]
        outputs.append(subprocess.run(command, capture_output=True, check=True).stdout)
    return outputs


def test_output_of_ssh(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        target = ssh_config.parse(data.decode(errors="surrogateescape"), "spark1")
        assert 0 <= target.port <= 65535
        _ = target.host_key_name, target.manual_login_command
        if "%" in target.proxy_command:
            _ = target.expanded_proxy_command
        for item in target.jump:
            ssh_config.parse_hop(item)

    feed(read, damaged_texts(read_seeds(tmp_path)))


def test_output_of_ssh_keygen() -> None:
    lines = [
        f"# Host spark1 found: line 1 \nspark1 ssh-ed25519 {KEY} a comment\n",
        f"# Host h found: line 2 REVOKED\n@revoked * ssh-ed25519 {KEY}\n",
        f"|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-rsa {KEY}\n@cert-authority *,!b ssh-rsa {KEY}\n",
    ]
    feed(lambda data: list(host_keys.parse_known_hosts(data)), damaged_texts([line.encode() for line in lines]))
