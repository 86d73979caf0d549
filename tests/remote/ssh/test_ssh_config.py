"""Parsing the output of `ssh -G`, and cases that an sshd on loopback can't cover."""

import base64
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sparkwright.errors import Refused, Unreachable
from sparkwright.remote.ssh import host_keys, ssh_config
from sparkwright.remote.ssh.connection import open_connection
from sparkwright.remote.ssh.ssh_config import SshTarget
from tests.remote.conftest import SshLab
from tests.remote.ssh.test_ssh_link import connection_error
from tests.waiting import wait_until

HOST_OUTPUT = "host spark1\nhostname 192.0.2.7\nuser ann\nport 2222\n"


def generate_key() -> paramiko.PKey:
    raw = Ed25519PrivateKey.generate().public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return paramiko.PKey.from_type_string("ssh-ed25519", base64.b64decode(raw.split()[1]))


def known_hosts_line(name: str, key: paramiko.PKey) -> str:
    return f"{name} {key.get_name()} {key.get_base64()}\n"


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ("hop", ("hop", "", 0)),
        ("hop:2222", ("hop", "", 2222)),
        ("ann@hop:2222", ("hop", "ann", 2222)),
        ("ann@example.org@hop", ("hop", "ann@example.org", 0)),
        ("[::1]:2222", ("::1", "", 2222)),
        ("ann@[fe80::1%eth0]", ("fe80::1%eth0", "ann", 0)),
        ("::1", ("::1", "", 0)),
        ("[192.0.2.1]:22", ("192.0.2.1", "", 22)),
        ("ssh://ann@[::1]:2222", ("::1", "ann", 2222)),
        ("ssh://hop/", ("hop", "", 0)),
    ],
)
def test_hop_is_parsed_in_every_notation(spec: str, target: tuple[str, str, int]) -> None:
    assert ssh_config.parse_hop(spec) == target


@pytest.mark.parametrize("spec", ["", "ann@", "hop:port", "hop:99999", "[::1", "hop:٣", "a b:c:d"])
def test_invalid_hop_is_refused(spec: str) -> None:
    with pytest.raises(Refused, match="ProxyJump"):
        ssh_config.parse_hop(spec)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("port 0x16", "ssh's Port must be a number up to 65535, got '0x16'"),
        ("identityfile /keys/%C", "ssh's IdentityFile has the token '%C', which is not supported"),
        ("revokedhostkeys /keys/${NOWHERE_SET}", r"ssh's RevokedHostKeys uses \${NOWHERE_SET}, which is not set"),
        ("proxyusefdpass yes", "ProxyUseFdpass is not supported"),
    ],
)
def test_unsupported_option_is_refused_by_name(line: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        ssh_config.parse(f"host spark1\n{line}\nhostname h\nuser u\n", "spark1")


def test_tokens_are_expanded_once() -> None:
    tokens = ssh_config.ssh_tokens("%n", "alias", 22, "ann", "", "")
    assert ssh_config.fill_tokens("X", "%h-%n-%p-%r-%%-%k", tokens) == "%n-alias-22-ann-%-alias"


def test_known_hosts_command_is_not_run_by_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    target = ssh_config.parse(f"{HOST_OUTPUT}knownhostscommand /bin/echo %n\n", f"$(touch {mark})")
    assert host_keys.find_known_keys(target, target.host_key_name) == []
    assert not mark.exists()


@pytest.mark.parametrize(("strict", "peer"), [("ask", "192.0.2.9"), ("no", "192.0.2.9")])
def test_check_host_ip_refuses_an_address_with_another_key(tmp_path: Path, strict: str, peer: str) -> None:
    mine, other = generate_key(), generate_key()
    file = tmp_path / "known"
    file.write_text(known_hosts_line("[spark]:2222", mine) + known_hosts_line(f"[{peer}]:2222", other))
    known = {"known_hosts_files": (file,), "new_keys_file": file, "strict_checking": strict}
    careless = SshTarget("spark", "ann", 2222, **known)  # type: ignore[arg-type]
    careful = SshTarget("spark", "ann", 2222, check_ip=True, **known)  # type: ignore[arg-type]
    first = host_keys.find_known_keys(careful, careful.host_key_name)
    assert host_keys.check(careless, mine, first, peer)
    assert host_keys.check(careful, mine, first, "127.0.0.1")
    with pytest.raises(Unreachable, match=f"{peer}, for which another key is known"):
        host_keys.check(careful, mine, first, peer)


def test_loop_of_jump_hosts_is_reported(lab: SshLab) -> None:
    lab.write_config("Host a\n  HostName 127.0.0.1\n  ProxyJump b\nHost b\n  HostName 127.0.0.1\n  ProxyJump a\n")
    with pytest.raises(Refused, match="ProxyJump forms a loop: b > a > b"):
        open_connection(ssh_config.resolve(lab.host(address="a", port=None)), "spark1", print)


def test_connection_with_a_refused_key_is_closed(lab: SshLab) -> None:
    lab.known_hosts.write_text("")
    assert "is not known yet" in connection_error(lab)
    wait_until(lambda: not lab.sshd.sessions(), "sshd turns others away for each that stays without a login")


def test_connection_to_a_jump_host_is_closed_if_the_target_is_refused(lab: SshLab) -> None:
    jump = lab.start_sshd("jump")
    lab.known_hosts.write_text(jump.known_hosts_line())
    lab.write_config(f"Host far\n  HostName 127.0.0.1\n  Port {lab.sshd.port}\n  ProxyJump 127.0.0.1:{jump.port}\n")
    assert "is not known yet" in connection_error(lab, address="far", port=None)
    wait_until(lambda: not jump.sessions())
