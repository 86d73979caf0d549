"""The identities of a login: keys and certificates that the user's ssh would offer, from files and the agent, each once."""

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

AGENT_S = 5.0
CERTIFICATE = "-cert-v01@openssh.com"
_CONTAINER = b"openssh-key-v1\0"
_UNREADABLE = (OSError, ValueError, TypeError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm)


class Login:
    """The auth_strategy of a client. problems: why a file was skipped."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._certificates = [blob for path in target.certificate_files if (blob := _certificate(path))]
        self._agent = AgentSSH()
        self._offered: set[bytes] = set()
        self._locked: set[bytes] = set()
        self.problems: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Try the keys one after the other. Raises PasswordRequiredException if only a passphrase is missing."""
        try:
            self._authenticate(transport)
        finally:
            self._agent._close()  # type: ignore[attr-defined]

    def _authenticate(self, transport: paramiko.Transport) -> None:
        refused: Exception = paramiko.AuthenticationException("no key")
        for key in self._keys():
            try:
                missing = transport.auth_publickey(self._target.user, key)
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise
                refused = error
                continue
            if missing:
                transport.auth_interactive_dumb(self._target.user)
            return
        raise paramiko.PasswordRequiredException("passphrase") if self._locked - self._offered else refused

    def _keys(self) -> Iterator[paramiko.PKey]:
        """Yield the keys: files first, then the agent; of each its certificates first."""
        if not self._target.pubkey:
            return
        wanted: set[bytes] = set()
        for path in self._target.identity_files:
            key = self._from_file(path)
            public = key.asbytes() if key else _public(path)
            wanted.add(public)
            if key and public not in self._offered:
                self._offered.add(public)
                yield from self._with_certificates(key, path)
        wanted.discard(b"")
        _ask(self._agent, self._target.identity_agent)
        for held in self._agent.get_keys():
            public = held.asbytes()
            listed = public in wanted or _signed(PublicBlob(held.get_name(), public)) in wanted
            if public not in self._offered and (listed or not self._target.identities_only):
                self._offered.add(public)
                yield from self._with_certificates(held, None)

    def _from_file(self, path: Path) -> paramiko.PKey | None:
        """Return the private key of a file; None if it has none that can be used without its passphrase."""
        try:
            state = path.stat()
            private = path.read_bytes().lstrip().startswith(b"-----BEGIN")
            if private and stat.S_IMODE(state.st_mode) & 0o077 and state.st_uid == os.getuid():
                self.problems.append(f"{path} can be read by others, `chmod 600` it")
                return None
            key: paramiko.PKey = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            self._locked.add(_public(path))
            return None
        except _UNREADABLE:
            return None
        key.public_blob = None
        return key

    def _with_certificates(self, key: paramiko.PKey, path: Path | None) -> Iterator[paramiko.PKey]:
        certificate = _certificate(Path(f"{path}-cert.pub")) if path else None
        for blob in [*self._certificates, *([certificate] if certificate else [])]:
            if _signed(blob) == key.asbytes():
                key.public_blob = blob
                yield key
        key.public_blob = None
        yield key


def _ask(agent: AgentSSH, named: str) -> None:
    """Connect to the agent in IdentityAgent, else to SSH_AUTH_SOCK's. Without an agent there are no keys."""
    if named in ("", "SSH_AUTH_SOCK"):
        named = "$SSH_AUTH_SOCK"
    path = os.environ.get(named[1:], "") if named.startswith("$") else named
    if path in ("", "none"):
        return
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(AGENT_S)
    try:
        opened.connect(path)
        agent._connect(opened)  # type: ignore[attr-defined]
        opened.settimeout(None)  # signing may wait for a touch of a hardware key
    except (OSError, paramiko.SSHException, ValueError):
        opened.close()


def _certificate(path: Path) -> PublicBlob | None:
    try:
        return PublicBlob.from_file(str(path)) if is_file(path) else None
    except _UNREADABLE:
        return None


def _signed(blob: PublicBlob) -> bytes:
    """Return the plain key of a certificate."""
    try:
        kind = blob.key_type.removesuffix(CERTIFICATE)
        return paramiko.PKey.from_type_string(kind, blob.key_blob).asbytes()
    except _UNREADABLE:
        return b""


def _public(path: Path) -> bytes:
    """Return the public part of a key whose private part can't be used: from the file beside it, or from its own header."""
    for item in (path, Path(f"{path}.pub")):
        blob = _certificate(item)
        if blob is not None:
            return blob.key_blob
    return _head(path)


def _head(path: Path) -> bytes:
    """Return the unencrypted header of an OpenSSH private key."""
    try:
        text = path.read_text()
        data = base64.b64decode("".join(text.split("-----")[2].split()))
        head = Message(data.removeprefix(_CONTAINER))
        for _ in range(3):
            head.get_string()  # cipher, kdf, its options
        return head.get_string() if head.get_int() == 1 and data.startswith(_CONTAINER) else b""
    except (*_UNREADABLE, IndexError):
        return b""
