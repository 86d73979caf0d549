"""Verification of host keys as in ssh: an unknown, changed or revoked key is refused, with a suggested fix.

This is intentionally stricter than ssh in two ways: a changed key is refused regardless of StrictHostKeyChecking, and
NoHostAuthenticationForLocalhost is ignored (docs/ssh.md).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import paramiko

from sparkwright.errors import Refused, Unreachable
from sparkwright.remote.ssh import ssh_config
from sparkwright.remote.ssh.ssh_config import SshTarget, is_file
from sparkwright.shell import join
from sparkwright.visible import one_line

Notify = Callable[[str], None]
RSA_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256")
#: markers at the beginning of a line in known_hosts
REVOKED_MARKER, AUTHORITY_MARKER = "@revoked", "@cert-authority"
#: first bytes of a key revocation list (KRL) in binary format
KRL_MAGIC = b"SSHKRL\n\0"
COMMAND_TIMEOUT_S = 10.0


class KnownKey(NamedTuple):
    """A line of known_hosts."""

    #: "", "@revoked" or "@cert-authority"
    marker: str
    #: type of the key, as written in the line
    kind: str
    key: bytes


class UnknownKey(Unreachable):
    """The host presented an unknown key, which the user may accept as with ssh."""

    def __init__(self, target: SshTarget, key: paramiko.PKey, fix: str) -> None:
        super().__init__(unknown_key_message(target, key), fix=fix)
        self.target = target
        self.key = key


def prepare_client(client: paramiko.SSHClient, target: SshTarget, notify: Notify) -> Callable[..., paramiko.Transport]:
    """Make a client accept keys only through `check`, and return the factory for its transport.

    The transport prefers the algorithms of known keys.
    """
    known_keys = find_known_keys(target, target.host_key_name)
    # the client has no known keys, so it passes every key to the policy
    client.set_missing_host_key_policy(_HostKeyPolicy(target, known_keys, notify))

    def create_transport(sock: object, **settings: object) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **settings)  # type: ignore[arg-type]
        options = transport.get_security_options()
        options.key_types = allowed_algorithms(target, known_keys, tuple(options.key_types))
        return transport

    return create_transport


def allowed_algorithms(
    target: SshTarget, known_keys: list[KnownKey], supported_algorithms: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the supported algorithms that the user's ssh allows, those of known keys first. Raises Refused if there is none."""
    kinds = {known_key.kind for known_key in known_keys if not known_key.marker}
    preferred_algorithms = kinds | set(RSA_ALGORITHMS if "ssh-rsa" in kinds else ())
    allowed_names = [
        name for name in supported_algorithms if not target.key_algorithms or name in target.key_algorithms
    ]
    if not allowed_names:
        raise Refused("ssh's HostKeyAlgorithms allows no algorithm that sparkwright supports.", where=target.address)
    return tuple(sorted(allowed_names, key=lambda algorithm: algorithm not in preferred_algorithms))


def check(target: SshTarget, key: paramiko.PKey, known_keys: list[KnownKey], peer_address: str = "") -> bool:
    """Return True if the key is known, or False if it is new and the user's configuration accepts new keys.

    Args:
        known_keys: the known_hosts lines for the host's name.
        peer_address: the host's IP address; empty if the connection uses a proxy.

    Raises:
        Unreachable: the key can't be trusted.
    """
    _refuse_revoked(target, key, known_keys)
    if key.get_name() == "ssh-rsa" and key.get_bits() < target.min_rsa_bits:
        raise Unreachable(
            f"the key of {target.host_key_name} has {key.get_bits()} bits, but RequiredRSASize requires {target.min_rsa_bits}.",
            fix="Generate a new host key on the host.",
        )
    _check_address_key(target, key, peer_address)
    unmarked_keys = [known_key for known_key in known_keys if not known_key.marker]
    if any(known_key.key == key.asbytes() for known_key in unmarked_keys):
        return True
    if any(known_key.kind == key.get_name() for known_key in unmarked_keys):
        raise changed_key_error(target, key, unmarked_keys)
    if target.host_key_name.startswith("["):
        portless_keys = find_known_keys(target, target.hostname, key)  # as in ssh, a line without the port counts, too
        _refuse_revoked(target, key, portless_keys)
        if any(known_key.key == key.asbytes() for known_key in portless_keys if not known_key.marker):
            return True
    if unmarked_keys:
        raise changed_key_error(target, key, unmarked_keys)
    if target.strict_checking in ("accept-new", "no") and target.new_keys_file is not None:
        return False
    if (
        target.strict_checking == "ask"
        and target.new_keys_file is not None
        and not any(known_key.marker == AUTHORITY_MARKER for known_key in known_keys)
    ):
        raise UnknownKey(target, key, _unknown_key_fix(target, known_keys))
    raise Unreachable(unknown_key_message(target, key), fix=_unknown_key_fix(target, known_keys))


def unknown_key_message(target: SshTarget, key: paramiko.PKey) -> str:
    return f"the key of {target.host_key_name} is not known yet: {fingerprint(key)}."


def changed_key_error(target: SshTarget, key: paramiko.PKey, known_keys: list[KnownKey]) -> Unreachable:
    """Return the error for a key that differs from the known ones."""
    expected_key = next((known_key for known_key in known_keys if known_key.kind == key.get_name()), known_keys[0])
    remove_command = join(["ssh-keygen", "-R", target.host_key_name])
    return Unreachable(
        f"the key of {target.host_key_name} is not the known one: {fingerprint(key)} ({key.get_name()}),"
        f" not {_sha256(expected_key.key)} ({expected_key.kind})."
        " The connection may be intercepted, or the host was reinstalled.",
        fix=f"If it was reinstalled: `{remove_command}`, then log in once with ssh and compare the new key.",
    )


def fingerprint(key: paramiko.PKey) -> str:
    """Return the fingerprint in ssh's format, SHA256:..."""
    return _sha256(key.asbytes())


def save_key(target: SshTarget, key: paramiko.PKey, path: Path) -> str:
    """Add a new key to a known_hosts file, and return a message for the user. Raises Refused if the file can't be written."""
    try:
        _append_line(path, f"{_known_hosts_name(target)} {key.get_name()} {key.get_base64()}\n")
    except OSError as error:
        message = f"the new key of {target.host_key_name} could not be saved in {path} ({error.strerror})"
        raise Refused(f"{message}: {fingerprint(key)}.", fix="Make the file writable.") from None
    return f"the new key of {target.host_key_name} was added to {path}: {fingerprint(key)}"


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    def __init__(self, target: SshTarget, known_keys: list[KnownKey], notify: Notify) -> None:
        self._target = target
        self._known_keys = known_keys
        self._notify = notify

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Check a key; called for every key, because the client has no known keys."""
        target, known_keys = self._target, self._known_keys
        if target.known_hosts_command:
            known_keys = find_known_keys(target, target.host_key_name, key)
        if not check(target, key, known_keys, _peer_address(client)) and target.new_keys_file is not None:
            try:
                self._notify(save_key(target, key, target.new_keys_file))
            except Refused as error:  # as ssh does, connect all the same
                self._notify(f"{error.message} It was accepted for this connection.")


def _refuse_revoked(target: SshTarget, key: paramiko.PKey, known_keys: list[KnownKey]) -> None:
    source = (
        f"{target.revoked_keys_file} (RevokedHostKeys)"
        if target.revoked_keys_file and is_revoked(target.revoked_keys_file, key)
        else ""
    )
    if any(known_key.marker == REVOKED_MARKER and known_key.key == key.asbytes() for known_key in known_keys):
        source = "known_hosts"
    if source:
        fix = "The key is no longer trusted: generate a new host key on the host."
        raise Unreachable(f"the key of {target.host_key_name} is revoked in {source}: {fingerprint(key)}.", fix=fix)


def _check_address_key(target: SshTarget, key: paramiko.PKey, peer_address: str) -> None:
    """Enforce CheckHostIP: refuse a key if the address is known with another key of its type. As in ssh, loopback is exempt."""
    is_loopback = peer_address == "::1" or peer_address.removeprefix("::ffff:").startswith("127.")
    if not target.check_ip or not peer_address or peer_address == target.hostname or is_loopback:
        return
    name = peer_address if target.port == 22 else f"[{peer_address}]:{target.port}"
    same_kind_keys = [
        known_key
        for known_key in find_known_keys(target, name, key)
        if not known_key.marker and known_key.kind == key.get_name()
    ]
    if same_kind_keys and all(known_key.key != key.asbytes() for known_key in same_kind_keys):
        difference = f"{_sha256(same_kind_keys[0].key)}, not {fingerprint(key)}"
        fix = f"If the address was reassigned: `{join(['ssh-keygen', '-R', name])}`."
        raise Unreachable(
            f"{target.host_key_name} has the address {peer_address}, for which another key is known: {difference}.",
            fix=fix,
        )


def _peer_address(client: paramiko.SSHClient) -> str:
    """Return the IP address of the client's socket; empty if the connection uses a proxy or a jump host."""
    transport = client.get_transport()
    try:
        return str(transport.sock.getpeername()[0]).partition("%")[0] if transport else ""
    except (AttributeError, OSError, TypeError):
        return ""


def _known_hosts_name(target: SshTarget) -> str:
    if not target.hash_names:
        return target.host_key_name
    salt = os.urandom(20)
    mac = hmac.new(salt, target.host_key_name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"


def _append_line(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.seek(0)
        separator = b"" if file.read()[-1:] in (b"", b"\n") else b"\n"
        file.write(separator + line.encode())


def _unknown_key_fix(target: SshTarget, known_keys: list[KnownKey]) -> str:
    has_authority = any(known_key.marker == AUTHORITY_MARKER for known_key in known_keys)
    if not has_authority and target.strict_checking != "yes":
        return f"Log in once manually, compare the key, and answer yes: `{target.manual_login_command}`."
    note = "Host certificates are not checked here. " if has_authority else ""
    if target.new_keys_file is None:
        return f"{note}Compare the key on the host, and set UserKnownHostsFile to a file that contains it."
    scan_command = join(["ssh-keyscan", "-p", target.port, target.hostname])
    return f"{note}Compare the key on the host, then add it: `{scan_command} >> {target.new_keys_file}`."


def _sha256(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def find_known_keys(target: SshTarget, name: str, key: paramiko.PKey | None = None) -> list[KnownKey]:
    """Return a host's lines in known_hosts files and the output of KnownHostsCommand. Raises Refused if the command fails.

    ssh-keygen searches the lines: like ssh, it supports hashed names, patterns and markers.

    Args:
        name: the host's name in known_hosts.
        key: the key that the host presented; None if it has not presented one yet.
    """
    known_keys: list[KnownKey] = []
    for path in target.known_hosts_files:
        if is_file(path):
            known_keys += _search_file(name, str(path), b"")
    if target.known_hosts_command:
        known_keys += _search_file(name, "/dev/stdin", _run_known_hosts_command(target, name, key))
    return known_keys


def parse_known_hosts(output: bytes) -> Iterator[KnownKey]:
    """Parse the output of `ssh-keygen -F`. Invalid lines are skipped, as in ssh."""
    for line in output.decode(errors="replace").split("\n"):
        fields = line.split()
        marker = fields.pop(0) if line.startswith("@") and fields else ""
        if len(fields) >= 3 and not line.startswith("#"):
            try:
                yield KnownKey(marker, fields[1], base64.b64decode(fields[2], validate=True))
            except (binascii.Error, ValueError):
                continue


def is_revoked(path: Path, key: paramiko.PKey) -> bool:
    """Return True if RevokedHostKeys lists a key. Raises Refused if the list can't be read; ssh then trusts no key either."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"ssh's RevokedHostKeys can't be read: {path}: {error.strerror}.") from None
    if data.startswith(KRL_MAGIC):
        return _is_in_krl(path, key)
    for number, line in enumerate(data.decode(errors="replace").split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            revoked_key = base64.b64decode(fields[1], validate=True)
        except (IndexError, ValueError):
            raise Refused(f"ssh's RevokedHostKeys contains an invalid key: {path}:{number}.") from None
        if revoked_key == key.asbytes():
            return True
    return False


def _is_in_krl(path: Path, key: paramiko.PKey) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
        file.write(f"{key.get_name()} {key.get_base64()}\n")
        file.flush()
        result = _run_keygen(["-Q", "-f", str(path), file.name])
    if result.returncode and b"REVOKED" not in result.stdout:
        reason = one_line(result.stderr.decode(errors="replace").strip(), max_chars=200)
        raise Refused(f"ssh's RevokedHostKeys can't be read: {path}: {reason}.")
    return result.returncode != 0


def _search_file(name: str, path: str, stdin: bytes) -> list[KnownKey]:
    return list(parse_known_hosts(_run_keygen(["-F", name, "-f", path], stdin).stdout))


def _run_keygen(argv: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *argv], input=stdin, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise Refused("there is no ssh-keygen on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"`ssh-keygen {argv[0]}` did not exit within {COMMAND_TIMEOUT_S:g} s.") from None


def _run_known_hosts_command(target: SshTarget, name: str, key: paramiko.PKey | None) -> bytes:
    """Run KnownHostsCommand, split into words as in ssh and without a shell, and return its output."""
    key_tokens = {"I": "ORDER", **dict.fromkeys("tfK", "NONE")}  # before the host has presented a key
    if key:
        key_tokens = {"I": "HOSTNAME", "t": key.get_name(), "f": key.fingerprint, "K": key.get_base64()}
    tokens = {**target.tokens, "H": name, **key_tokens}
    try:
        argv = [
            ssh_config.fill_tokens("KnownHostsCommand", word, tokens)
            for word in shlex.split(target.known_hosts_command)
        ]
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, IndexError) as error:
        fix = "Set it to the full path of a program."
        raise Refused(f"ssh's KnownHostsCommand can't be run: {error}.", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"ssh's KnownHostsCommand did not exit within {COMMAND_TIMEOUT_S:g} s.") from None
    if result.returncode:
        error_output = one_line(result.stderr.decode(errors="replace").strip(), max_chars=200)
        raise Refused(
            f"ssh's KnownHostsCommand failed with {result.returncode}{f': {error_output}' if error_output else ''}."
        )
    return result.stdout
