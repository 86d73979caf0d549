"""Login with the keys and certificates that the user's ssh would offer: those in files and in the agent."""

from __future__ import annotations

import base64
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.message import Message
from paramiko.pkey import PublicBlob, UnknownKeyType

from sparkwright.remote.ssh.ssh_config import SshTarget, is_file

AGENT_TIMEOUT_S = 5.0
CERTIFICATE_SUFFIX = "-cert-v01@openssh.com"
_OPENSSH_MAGIC = b"openssh-key-v1\0"
_KEY_ERRORS = (OSError, ValueError, TypeError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm)


class Login:
    """The `auth_strategy` of a Paramiko client.

    For messages, `offered_keys` has the public keys that were offered, and `problems` the reasons why key files were skipped.
    """

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._certificates = [blob for path in target.certificate_files if (blob := _read_certificate(path))]
        self._agent = AgentSSH()
        self.offered_keys: set[bytes] = set()
        self._locked_keys: set[bytes] = set()
        self.problems: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Try the keys in order. Raises PasswordRequiredException if all are refused and another one needs a passphrase."""
        try:
            self._authenticate(transport)
        finally:
            self._agent._close()  # type: ignore[attr-defined]

    def _authenticate(self, transport: paramiko.Transport) -> None:
        last_error: Exception = paramiko.AuthenticationException("no key")
        for key in self._iter_keys():
            try:
                remaining_methods = transport.auth_publickey(self._target.user, key)
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise
                last_error = error
                continue
            if remaining_methods:
                transport.auth_interactive_dumb(self._target.user)
            return
        raise paramiko.PasswordRequiredException("passphrase") if self._locked_keys - self.offered_keys else last_error

    def _iter_keys(self) -> Iterator[paramiko.PKey]:
        """Yield the keys to offer: files before the agent, and each key's certificates before the key."""
        if not self._target.uses_public_keys:
            return
        configured_keys: set[bytes] = set()
        for path in self._target.identity_files:
            key = self._load_key(path)
            public_key = key.asbytes() if key else _public_key(path)
            configured_keys.add(public_key)
            if key and public_key not in self.offered_keys:
                self.offered_keys.add(public_key)
                yield from self._with_certificates(key, path)
        configured_keys.discard(b"")
        _connect_agent(self._agent, self._target.identity_agent)
        for agent_key in self._agent.get_keys():
            public_key = agent_key.asbytes()
            is_configured = (
                public_key in configured_keys
                or _certified_key(PublicBlob(agent_key.get_name(), public_key)) in configured_keys
            )
            if public_key not in self.offered_keys and (is_configured or not self._target.identities_only):
                self.offered_keys.add(public_key)
                yield from self._with_certificates(agent_key, None)

    def _load_key(self, path: Path) -> paramiko.PKey | None:
        """Return the private key in a file, or None if it is missing, unusable or needs a passphrase."""
        try:
            status = path.stat()
            is_private_key = path.read_bytes().lstrip().startswith(b"-----BEGIN")
            if is_private_key and stat.S_IMODE(status.st_mode) & 0o077 and status.st_uid == os.getuid():
                self.problems.append(f"{path} is readable by others: run `chmod 600` on it")
                return None
            key: paramiko.PKey = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            self._locked_keys.add(_public_key(path))
            return None
        except _KEY_ERRORS:
            return None
        key.public_blob = None
        return key

    def _with_certificates(self, key: paramiko.PKey, path: Path | None) -> Iterator[paramiko.PKey]:
        certificate = _read_certificate(Path(f"{path}-cert.pub")) if path else None
        for blob in [*self._certificates, *([certificate] if certificate else [])]:
            if _certified_key(blob) == key.asbytes():
                key.public_blob = blob
                yield key
        key.public_blob = None
        yield key


def _connect_agent(agent: AgentSSH, address: str) -> None:
    """Connect to the agent that IdentityAgent names, by default that of SSH_AUTH_SOCK. A missing agent is not an error."""
    if address in ("", "SSH_AUTH_SOCK"):
        address = "$SSH_AUTH_SOCK"
    path = os.environ.get(address[1:], "") if address.startswith("$") else address
    if path in ("", "none"):
        return
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(AGENT_TIMEOUT_S)
    try:
        sock.connect(path)
        agent._connect(sock)  # type: ignore[attr-defined]
        sock.settimeout(None)  # signing may wait until the user touches a hardware key
    except (OSError, paramiko.SSHException, ValueError):
        sock.close()


def _read_certificate(path: Path) -> PublicBlob | None:
    try:
        return PublicBlob.from_file(str(path)) if is_file(path) else None
    except _KEY_ERRORS:
        return None


def _certified_key(blob: PublicBlob) -> bytes:
    """Return the key that a certificate certifies; empty if it is invalid."""
    try:
        kind = blob.key_type.removesuffix(CERTIFICATE_SUFFIX)
        return paramiko.PKey.from_type_string(kind, blob.key_blob).asbytes()
    except _KEY_ERRORS:
        return b""


def _public_key(path: Path) -> bytes:
    """Return the public part of an unusable private key, from the file, its .pub file or its header; empty if unknown."""
    blob = _read_certificate(path) or _read_certificate(Path(f"{path}.pub"))
    return blob.key_blob if blob is not None else _public_key_in_header(path)


def _public_key_in_header(path: Path) -> bytes:
    """Return the public key in the unencrypted header of an OpenSSH private key; empty for other files."""
    try:
        text = path.read_text()
        data = base64.b64decode("".join(text.split("-----")[2].split()))
        header = Message(data.removeprefix(_OPENSSH_MAGIC))
        for _ in range(3):
            header.get_string()  # cipher, kdf, kdf options
        return header.get_string() if header.get_int() == 1 and data.startswith(_OPENSSH_MAGIC) else b""
    except (*_KEY_ERRORS, IndexError):
        return b""
