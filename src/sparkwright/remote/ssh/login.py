"""Logging in with the keys and certificates that the user's ssh would offer, from files and the agent."""

from __future__ import annotations

import base64
import logging
import os
import random
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from fabric import Config, Connection
from paramiko.agent import AgentSSH
from paramiko.message import Message
from paramiko.pkey import PublicBlob, UnknownKeyType

from sparkwright.errors import Refused, SparkwrightError, Unreachable
from sparkwright.remote.ssh import host_keys, ssh_config
from sparkwright.remote.ssh.ssh_config import SshTarget, is_file
from sparkwright.shell import join
from sparkwright.transport.connection import dial

AGENT_TIMEOUT_S = 5.0
CERTIFICATE_SUFFIX = "-cert-v01@openssh.com"
_OPENSSH_MAGIC = b"openssh-key-v1\0"
_KEY_ERRORS = (OSError, ValueError, TypeError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm)


class Login:
    """The `auth_strategy` of a client. `problems` holds the reasons why files were skipped."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._certificates = [blob for path in target.certificate_files if (blob := _read_certificate(path))]
        self._agent = AgentSSH()
        self._offered: set[bytes] = set()
        self._locked: set[bytes] = set()
        self.problems: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Try the keys one by one. Raises PasswordRequiredException if only a passphrase is missing."""
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
        """Yield the keys, those in files before the agent's, and each key's certificates before the key itself."""
        if not self._target.pubkey:
            return
        configured: set[bytes] = set()
        for path in self._target.identity_files:
            key = self._load_key(path)
            public = key.asbytes() if key else _public_key(path)
            configured.add(public)
            if key and public not in self._offered:
                self._offered.add(public)
                yield from self._with_certificates(key, path)
        configured.discard(b"")
        _connect_agent(self._agent, self._target.identity_agent)
        for agent_key in self._agent.get_keys():
            public = agent_key.asbytes()
            is_configured = (
                public in configured or _certified_key(PublicBlob(agent_key.get_name(), public)) in configured
            )
            if public not in self._offered and (is_configured or not self._target.identities_only):
                self._offered.add(public)
                yield from self._with_certificates(agent_key, None)

    def _load_key(self, path: Path) -> paramiko.PKey | None:
        """Return the private key in a file, or None if there is none that can be used without a passphrase."""
        try:
            state = path.stat()
            private = path.read_bytes().lstrip().startswith(b"-----BEGIN")
            if private and stat.S_IMODE(state.st_mode) & 0o077 and state.st_uid == os.getuid():
                self.problems.append(f"{path} can be read by others, `chmod 600` it")
                return None
            key: paramiko.PKey = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):
            self._locked.add(_public_key(path))
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
    """Connect to the agent that IdentityAgent or else SSH_AUTH_SOCK names. Without an agent there are no keys."""
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
        sock.settimeout(None)  # signing may wait for a hardware key to be touched
    except (OSError, paramiko.SSHException, ValueError):
        sock.close()


def _read_certificate(path: Path) -> PublicBlob | None:
    try:
        return PublicBlob.from_file(str(path)) if is_file(path) else None
    except _KEY_ERRORS:
        return None


def _certified_key(blob: PublicBlob) -> bytes:
    """Return the plain key of a certificate."""
    try:
        kind = blob.key_type.removesuffix(CERTIFICATE_SUFFIX)
        return paramiko.PKey.from_type_string(kind, blob.key_blob).asbytes()
    except _KEY_ERRORS:
        return b""


def _public_key(path: Path) -> bytes:
    """Return the public part of an unusable private key, from the .pub file next to it or from its own header."""
    for item in (path, Path(f"{path}.pub")):
        blob = _read_certificate(item)
        if blob is not None:
            return blob.key_blob
    return _public_key_in_header(path)


def _public_key_in_header(path: Path) -> bytes:
    """Return the unencrypted header of an OpenSSH private key."""
    try:
        text = path.read_text()
        data = base64.b64decode("".join(text.split("-----")[2].split()))
        header = Message(data.removeprefix(_OPENSSH_MAGIC))
        for _ in range(3):
            header.get_string()  # cipher, kdf, kdf options
        return header.get_string() if header.get_int() == 1 and data.startswith(_OPENSSH_MAGIC) else b""
    except (*_KEY_ERRORS, IndexError):
        return b""


# The connection of a login, used by ssh_link.py: through its jump hosts, with every host key checked, and with a sentence
# for each failure.
#
# docs/ssh.md describes the measured traps: Fabric accepts any host key and does not read Include, nothing sets TCP_NODELAY,
# and a channel waits for an hour by default.

CONNECT_TIMEOUT_S = 10.0
CHANNEL_TIMEOUT_S = 10.0
RETRY_PAUSES_S = (0.3, 0.6, 1.2, 2.4)
_TIMEOUT_MESSAGES = ("banner", "timeout", "timed out", "no existing session")  # Paramiko's messages

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that are handled here


class _Dropped(Unreachable):
    """Raised if the host answered but hung up before the login."""


def open_connection(
    target: SshTarget, name: str, notify: Callable[[str], None], visited: tuple[str, ...] = ()
) -> Connection:
    """Return a connection through its jump hosts, with every key checked.

    Raises Unreachable, or Refused if the jump hosts form a loop.
    """
    gateway: Connection | None = None
    try:
        for hop in target.jump:
            if hop in visited:
                raise Refused(f"ProxyJump forms a loop: {' > '.join((*visited, hop))}.", where=name)
            hop_target, where = ssh_config.jump_target(hop), f"{name} (over {hop})"
            if (
                gateway is None and hop_target.jump != target.jump
            ):  # equal if `Host *` names the jump host for itself too
                gateway = open_connection(hop_target, where, notify, (*visited, hop))
            else:
                gateway = _connect_with_retries(hop_target, where, gateway, notify)
        return _connect_with_retries(target, name, gateway, notify)
    except BaseException:
        if gateway is not None:
            gateway.close()
        raise


def _connect_with_retries(
    target: SshTarget, name: str, gateway: Connection | None, notify: Callable[[str], None]
) -> Connection:
    """Connect one hop, retrying if it hangs up before the login.

    An sshd or jump host hangs up on the eleventh concurrent login.
    """
    for pause_s in RETRY_PAUSES_S:
        try:
            return _connect(target, name, gateway, notify)
        except _Dropped:
            # logins that were dropped together must not retry together
            time.sleep(pause_s * random.uniform(0.5, 1.5))
    return _connect(target, name, gateway, notify)


def _connect(target: SshTarget, name: str, gateway: Connection | None, notify: Callable[[str], None]) -> Connection:
    login = Login(target)
    settings: dict[str, Any] = {
        "auth_strategy": login,
        "banner_timeout": CONNECT_TIMEOUT_S,
        "auth_timeout": CONNECT_TIMEOUT_S,
        "channel_timeout": CHANNEL_TIMEOUT_S,
    }
    began_s = time.monotonic()
    try:
        if gateway is None:
            settings["sock"] = _open_socket(target)
        connection = Connection(
            target.hostname,
            user=target.user,
            port=target.port,
            gateway=gateway,
            connect_timeout=CONNECT_TIMEOUT_S,
            connect_kwargs=settings,
            config=Config(overrides={"load_ssh_configs": False}),
        )
        connection.connect_kwargs["transport_factory"] = host_keys.prepare_client(connection.client, target, notify)
        try:
            connection.open()
        except (
            BaseException
        ):  # immediately, because sshd counts connections without a login and turns others away (MaxStartups)
            connection.client.close()
            raise
    except SparkwrightError as error:
        error.where = error.where or name
        raise
    except Exception as error:
        if "banner" in str(error) and time.monotonic() - began_s < CONNECT_TIMEOUT_S / 2:
            where = target.display_address
            fix = "Too many logins at once? `MaxStartups` of its sshd limits them."
            raise _Dropped(f"unreachable: {where} hangs up before the login.", where=name, fix=fix) from None
        raise _login_error(error, target, name, login) from None
    if connection.transport is not None:
        connection.transport.set_keepalive(5)
    return connection


def _open_socket(target: SshTarget) -> socket.socket | paramiko.ProxyCommand:
    if target.proxy_command:
        return paramiko.ProxyCommand(join(["sh", "-c", f"exec {target.proxy}"]))
    return dial(target.hostname, target.port, CONNECT_TIMEOUT_S)  # with TCP_NODELAY


def _login_error(error: Exception, target: SshTarget, name: str, login: Login) -> Unreachable:
    """Convert an error from Paramiko or the network to a sentence."""
    where = target.display_address
    if isinstance(error, paramiko.PasswordRequiredException):
        fix = "Add it to your agent: `ssh-add`."
        return Unreachable("unreachable: the key has a passphrase and no agent holds it.", where=name, fix=fix)
    if isinstance(error, paramiko.AuthenticationException):
        tried = ", ".join(str(path) for path in target.identity_files) or "no key file"
        tried += f" ({'; '.join(login.problems)})" if login.problems else ""
        fix = f"Try `{target.manual_login}`."
        return Unreachable(f"unreachable: {where} accepts none of the agent's keys and {tried}.", where=name, fix=fix)
    if isinstance(error, socket.gaierror):
        return Unreachable(f"unreachable: cannot resolve {target.hostname}.", where=name, fix="Check `address:`.")
    if isinstance(error, ConnectionRefusedError) or "Unable to connect" in str(error):
        fix = "Is sshd up, and the port right?"
        return Unreachable(f"unreachable: {where} refuses connections.", where=name, fix=fix)
    if isinstance(error, TimeoutError) or any(word in str(error).lower() for word in _TIMEOUT_MESSAGES):
        return Unreachable(f"unreachable: {where} does not answer within {CONNECT_TIMEOUT_S:g} s.", where=name)
    reason = (
        "the connection closed during the login" if isinstance(error, EOFError) else str(error) or type(error).__name__
    )
    return Unreachable(f"unreachable: {where}: {reason}.", where=name)
