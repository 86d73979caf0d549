"""Damaged output of `ssh -G` and `ssh-keygen -F` is parsed, or refused with one sentence."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sparkwright.remote.ssh import host_keys, ssh_config
from tests.fuzz.harness import damaged_texts, feed
from tests.remote.ssh_cases import CASES

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIPBJwYY+YKZvoKv9atSZmMekoPfwK5e8yHmbdSREEoQC"
HEADS = ("IdentityFile %d/.ssh/%h_%r\n", "ProxyJump ann@a:22,b@[::1]:22\n", "KnownHostsCommand /bin/x '%H' %K\n", "")


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
        _ = target.host_key_name, target.manual_login
        if "%" in target.proxy_command:
            _ = target.proxy
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
