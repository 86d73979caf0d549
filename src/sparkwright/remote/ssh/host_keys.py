"""Verification of host keys as in ssh: an unknown, changed or revoked key is refused, with a fix.

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

Say = Callable[[str], None]
RSA = ("rsa-sha2-512", "rsa-sha2-256")


class UnknownKey(Unreachable):
    """Raised for a host key that is in no file, and that the user may accept as with ssh.

    Args:
        target: the host.
        key: the key that the host presented.
    """

    def __init__(self, target: SshTarget, key: paramiko.PKey, fix: str) -> None:
        super().__init__(f"the key of {target.known_as} is not known yet: {fingerprint(key)}.", fix=fix)
        self.target = target
        self.key = key


def prepare(client: paramiko.SSHClient, target: SshTarget, say: Say) -> Callable[..., paramiko.Transport]:
    """Make a client accept keys only through `check`, and return the factory for its transport.

    The transport requests a known kind of key first.
    """
    first = lines(target, target.known_as)
    client.set_missing_host_key_policy(
        _Policy(target, first, say)
    )  # the client has no known keys of its own, so that all are checked here

    def transport(sock: object, **settings: object) -> paramiko.Transport:
        made = paramiko.Transport(sock, **settings)  # type: ignore[arg-type]
        options = made.get_security_options()
        options.key_types = algorithms(target, first, tuple(options.key_types))
        return made

    return transport


def algorithms(target: SshTarget, known: list[Known], spoken: tuple[str, ...]) -> tuple[str, ...]:
    """Return the supported algorithms that the user allows, those of known keys first. Raises Refused if none is left."""
    kinds = {line.kind for line in known if not line.marker}
    preferred = kinds | set(RSA if "ssh-rsa" in kinds else ())
    allowed = [item for item in spoken if not target.key_algorithms or item in target.key_algorithms]
    if not allowed:
        raise Refused("ssh's HostKeyAlgorithms leaves no kind of key that can be checked here.", where=target.address)
    return tuple(sorted(allowed, key=lambda algorithm: algorithm not in preferred))


def check(target: SshTarget, key: paramiko.PKey, first: list[Known], peer: str = "") -> bool:
    """Return True if the key is known, or False if it is new and the user's configuration accepts new keys.

    Args:
        first: the known lines for the host's own name.
        peer: the address at the other end; empty if it was reached through a proxy.

    Raises:
        Unreachable: the key can't be trusted.
    """
    _refuse_revoked(target, key, first)
    if key.get_name() == "ssh-rsa" and key.get_bits() < target.rsa_bits:
        message = (
            f"the key of {target.known_as} has {key.get_bits()} bits, but RequiredRSASize requires {target.rsa_bits}."
        )
        raise Unreachable(message, fix="Give the host a new key.")
    _refuse_another_of_the_address(target, key, peer)
    plain = [line for line in first if not line.marker]
    if any(line.key == key.asbytes() for line in plain):
        return True
    if any(line.kind == key.get_name() for line in plain):
        raise changed(target, key, plain)
    if target.known_as.startswith("["):
        portless = lines(target, target.hostname, key)  # ssh looks there too
        _refuse_revoked(target, key, portless)
        if any(line.key == key.asbytes() for line in portless if not line.marker):
            return True
    if plain:
        raise changed(target, key, plain)
    if target.strict in ("accept-new", "no") and target.keep_in is not None:
        return False
    if target.strict == "ask" and target.keep_in is not None and not any(line.marker == AUTHORITY for line in first):
        raise UnknownKey(target, key, _fix(target, first))
    raise Unreachable(f"the key of {target.known_as} is not known yet: {fingerprint(key)}.", fix=_fix(target, first))


def changed(target: SshTarget, key: paramiko.PKey, plain: list[Known]) -> Unreachable:
    """Return the error for a key that differs from the known ones."""
    known = next((line for line in plain if line.kind == key.get_name()), plain[0])
    return Unreachable(
        f"the key of {target.known_as} is not the known one: {fingerprint(key)} ({key.get_name()}),"
        f" not {_sha256(known.key)} ({known.kind})."
        " The connection may be intercepted, or the host was reinstalled.",
        fix=f"If it was: `{join(['ssh-keygen', '-R', target.known_as])}`, then log in once with ssh and compare the new one.",
    )


def fingerprint(key: paramiko.PKey) -> str:
    """Return the fingerprint in ssh's format, SHA256:..."""
    return _sha256(key.asbytes())


def keep(target: SshTarget, key: paramiko.PKey, path: Path) -> str:
    """Save a new key, and return a sentence about what was done."""
    line = f"{_written_name(target)} {key.get_name()} {key.get_base64()}\n"
    try:
        _append(path, line)
    except OSError as error:
        return f"the new key of {target.known_as} is accepted, but {path} can't be written ({error.strerror}): {fingerprint(key)}"
    return f"the new key of {target.known_as} is now in {path}: {fingerprint(key)}"


class _Policy(paramiko.MissingHostKeyPolicy):
    def __init__(self, target: SshTarget, first: list[Known], say: Say) -> None:
        self._target = target
        self._first = first
        self._say = say

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Check a key. Every key is missing for the client, which knows none."""
        target, first = self._target, self._first
        if target.known_hosts_command:
            first = lines(target, target.known_as, key)
        if not check(target, key, first, _peer(client)) and target.keep_in is not None:
            self._say(keep(target, key, target.keep_in))


def _refuse_revoked(target: SshTarget, key: paramiko.PKey, lines: list[Known]) -> None:
    where = f"{target.revoked} (RevokedHostKeys)" if target.revoked and revoked(target.revoked, key) else ""
    if any(line.marker == REVOKED and line.key == key.asbytes() for line in lines):
        where = "known_hosts"
    if where:
        fix = "The host presents a key that is no longer trusted: give it a new one."
        raise Unreachable(f"the key of {target.known_as} is revoked in {where}: {fingerprint(key)}.", fix=fix)


def _refuse_another_of_the_address(target: SshTarget, key: paramiko.PKey, peer: str) -> None:
    """Enforce CheckHostIP: the address must not have a different known key of the same kind. As in ssh, loopback is exempt."""
    loopback = peer == "::1" or peer.removeprefix("::ffff:").startswith("127.")
    if not target.check_ip or not peer or peer == target.hostname or loopback:
        return
    name = peer if target.port == 22 else f"[{peer}]:{target.port}"
    plain = [line for line in lines(target, name, key) if not line.marker and line.kind == key.get_name()]
    if plain and all(line.key != key.asbytes() for line in plain):
        keys = f"{_sha256(plain[0].key)}, not {fingerprint(key)}"
        fix = f"If the address moved: `{join(['ssh-keygen', '-R', name])}`."
        raise Unreachable(f"{target.known_as} is at {peer}, which is known with another key: {keys}.", fix=fix)


def _peer(client: paramiko.SSHClient) -> str:
    """Return the address at the other end of the client's socket; empty behind a proxy or a jump host."""
    transport = client.get_transport()
    try:
        return str(transport.sock.getpeername()[0]).partition("%")[0] if transport else ""
    except (AttributeError, OSError, TypeError):
        return ""


def _written_name(target: SshTarget) -> str:
    if not target.hash_names:
        return target.known_as
    salt = os.urandom(20)
    mac = hmac.new(salt, target.known_as.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.seek(0)
        start = b"" if file.read()[-1:] in (b"", b"\n") else b"\n"
        file.write(start + line.encode())


def _fix(target: SshTarget, lines: list[Known]) -> str:
    authority = any(line.marker == AUTHORITY for line in lines)
    if not authority and target.strict != "yes":
        return f"Log in once by hand, compare it, and answer yes: `{target.manual_login}`."
    why = "Host certificates are not checked here. " if authority else ""
    if target.keep_in is None:
        return f"{why}Compare it at the host, and name a file in UserKnownHostsFile that holds it."
    scan = join(["ssh-keyscan", "-p", target.port, target.hostname])
    return f"{why}Compare it at the host, then add its line: `{scan} >> {target.keep_in}`."


def _sha256(key: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


REVOKED, AUTHORITY = "@revoked", "@cert-authority"
# The known keys of a host, from known_hosts files, KnownHostsCommand and RevokedHostKeys.
#
# A host's lines are looked up with ssh-keygen, which handles hashed names, patterns and markers as ssh does.

KRL_MAGIC = b"SSHKRL\n\0"
COMMAND_S = 10.0


class Known(NamedTuple):
    """A line of known_hosts."""

    #: "", "@revoked" or "@cert-authority"
    marker: str
    #: type of the key, as written in the line
    kind: str
    key: bytes


def lines(target: SshTarget, name: str, key: paramiko.PKey | None = None) -> list[Known]:
    """Return the lines for a name, the user's files first. Raises Refused if KnownHostsCommand fails.

    Args:
        key: the key that the host presented; None before it has.
    """
    found: list[Known] = []
    for path in target.known_hosts:
        if is_file(path):
            found += _matching(name, str(path), b"")
    if target.known_hosts_command:
        found += _matching(name, "/dev/stdin", _command(target, name, key))
    return found


def read_known_hosts(printed: bytes) -> Iterator[Known]:
    """Parse the output of `ssh-keygen -F`. Invalid lines are skipped, as in ssh."""
    for line in printed.decode(errors="replace").split("\n"):
        fields = line.split()
        marker = fields.pop(0) if line.startswith("@") and fields else ""
        if len(fields) >= 3 and not line.startswith("#"):
            try:
                yield Known(marker, fields[1], base64.b64decode(fields[2], validate=True))
            except (binascii.Error, ValueError):
                continue


def revoked(path: Path, key: paramiko.PKey) -> bool:
    """Return True if RevokedHostKeys lists a key. Raises Refused if the list can't be read, as ssh trusts no key then either."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"ssh's RevokedHostKeys can't be read: {path}: {error.strerror}.") from None
    if data.startswith(KRL_MAGIC):
        return _in_krl(path, key)
    for number, line in enumerate(data.decode(errors="replace").split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            listed = base64.b64decode(fields[1], validate=True)
        except (IndexError, ValueError):
            raise Refused(f"ssh's RevokedHostKeys has a line that is not a key: {path}:{number}.") from None
        if listed == key.asbytes():
            return True
    return False


def _in_krl(path: Path, key: paramiko.PKey) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
        file.write(f"{key.get_name()} {key.get_base64()}\n")
        file.flush()
        answer = _keygen(["-Q", "-f", str(path), file.name])
    if answer.returncode and b"REVOKED" not in answer.stdout:
        why = one_line(answer.stderr.decode(errors="replace").strip(), at_most=200)
        raise Refused(f"ssh's RevokedHostKeys can't be read: {path}: {why}.")
    return answer.returncode != 0


def _matching(name: str, path: str, given: bytes) -> list[Known]:
    return list(read_known_hosts(_keygen(["-F", name, "-f", path], given).stdout))


def _keygen(argv: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *argv], input=given, capture_output=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        raise Refused("there is no ssh-keygen on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"`ssh-keygen {argv[0]}` did not exit within {COMMAND_S:g} s.") from None


def _command(target: SshTarget, name: str, key: paramiko.PKey | None) -> bytes:
    """Return the output of KnownHostsCommand, which is split as in ssh and run without a shell."""
    about = {"I": "ORDER", **dict.fromkeys("tfK", "NONE")}  # before the host is contacted
    if key:
        about = {"I": "HOSTNAME", "t": key.get_name(), "f": key.fingerprint, "K": key.get_base64()}
    tokens = {**target.tokens, "H": name, **about}
    try:
        argv = [ssh_config.fill("KnownHostsCommand", word, tokens) for word in shlex.split(target.known_hosts_command)]
        answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, ValueError, IndexError) as error:
        fix = "Its program needs its full path."
        raise Refused(f"ssh's KnownHostsCommand can't be run: {error}.", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"ssh's KnownHostsCommand did not exit within {COMMAND_S:g} s.") from None
    if answer.returncode:
        last = one_line(answer.stderr.decode(errors="replace").strip(), at_most=200)
        raise Refused(f"ssh's KnownHostsCommand failed with {answer.returncode}{f': {last}' if last else ''}.")
    return answer.stdout
