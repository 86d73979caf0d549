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

AGENT_S = 5.0
CERTIFICATE = "-cert-v01@openssh.com"
_CONTAINER = b"openssh-key-v1\0"
_UNREADABLE = (OSError, ValueError, TypeError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm)


class Login:
    """The `auth_strategy` of a client. `problems` holds the reasons why files were skipped."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._certificates = [blob for path in target.certificate_files if (blob := _certificate(path))]
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
        """Return the private key in a file, or None if there is none that can be used without a passphrase."""
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
    """Connect to the agent that IdentityAgent or else SSH_AUTH_SOCK names. Without an agent there are no keys."""
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
        opened.settimeout(None)  # signing may wait for a hardware key to be touched
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
    """Return the public part of an unusable private key, from the .pub file next to it or from its own header."""
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
            head.get_string()  # cipher, kdf, kdf options
        return head.get_string() if head.get_int() == 1 and data.startswith(_CONTAINER) else b""
    except (*_UNREADABLE, IndexError):
        return b""


# The connection of a login, used by ssh_link.py: through its jump hosts, with every host key checked, and with a sentence
# for each failure.
#
# docs/ssh.md describes the measured traps: Fabric accepts any host key and does not read Include, nothing sets TCP_NODELAY,
# and a channel waits for an hour by default.

CONNECT_S = 10.0
CHANNEL_S = 10.0
DROPPED_PAUSES_S = (0.3, 0.6, 1.2, 2.4)
_NO_ANSWER = ("banner", "timeout", "timed out", "no existing session")  # Paramiko's messages

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that are handled here


class _Dropped(Unreachable):
    """Raised if the host answered but hung up before the login."""


def opened(target: SshTarget, name: str, say: Callable[[str], None], through: tuple[str, ...] = ()) -> Connection:
    """Return a connection through its jump hosts, with every key checked.

    Raises Unreachable, or Refused if the jump hosts form a loop.
    """
    gateway: Connection | None = None
    try:
        for hop in target.jump:
            if hop in through:
                raise Refused(f"ProxyJump forms a loop: {' > '.join((*through, hop))}.", where=name)
            over, where = ssh_config.jump_target(hop), f"{name} (over {hop})"
            if gateway is None and over.jump != target.jump:  # equal if `Host *` names the jump host for itself too
                gateway = opened(over, where, say, (*through, hop))
            else:
                gateway = _one(over, where, gateway, say)
        return _one(target, name, gateway, say)
    except BaseException:
        if gateway is not None:
            gateway.close()
        raise


def _one(target: SshTarget, name: str, gateway: Connection | None, say: Callable[[str], None]) -> Connection:
    """Connect one hop, retrying if it hangs up before the login.

    An sshd or jump host hangs up on the eleventh concurrent login.
    """
    for pause_s in DROPPED_PAUSES_S:
        try:
            return _once(target, name, gateway, say)
        except _Dropped:
            # logins that were dropped together must not retry together
            time.sleep(pause_s * random.uniform(0.5, 1.5))
    return _once(target, name, gateway, say)


def _once(target: SshTarget, name: str, gateway: Connection | None, say: Callable[[str], None]) -> Connection:
    login = Login(target)
    settings: dict[str, Any] = {
        "auth_strategy": login,
        "banner_timeout": CONNECT_S,
        "auth_timeout": CONNECT_S,
        "channel_timeout": CHANNEL_S,
    }
    began_s = time.monotonic()
    try:
        if gateway is None:
            settings["sock"] = _socket(target)
        connection = Connection(
            target.hostname,
            user=target.user,
            port=target.port,
            gateway=gateway,
            connect_timeout=CONNECT_S,
            connect_kwargs=settings,
            config=Config(overrides={"load_ssh_configs": False}),
        )
        connection.connect_kwargs["transport_factory"] = host_keys.prepare(connection.client, target, say)
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
        if "banner" in str(error) and time.monotonic() - began_s < CONNECT_S / 2:
            where = target.shown
            fix = "Too many logins at once? `MaxStartups` of its sshd limits them."
            raise _Dropped(f"unreachable: {where} hangs up before the login.", where=name, fix=fix) from None
        raise _refusal(error, target, name, login) from None
    if connection.transport is not None:
        connection.transport.set_keepalive(5)
    return connection


def _socket(target: SshTarget) -> socket.socket | paramiko.ProxyCommand:
    if target.proxy_command:
        return paramiko.ProxyCommand(join(["sh", "-c", f"exec {target.proxy}"]))
    return dial(target.hostname, target.port, CONNECT_S)  # with TCP_NODELAY


def _refusal(error: Exception, target: SshTarget, name: str, login: Login) -> Unreachable:
    """Convert an error from Paramiko or the network to a sentence."""
    where = target.shown
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
    if isinstance(error, TimeoutError) or any(word in str(error).lower() for word in _NO_ANSWER):
        return Unreachable(f"unreachable: {where} does not answer within {CONNECT_S:g} s.", where=name)
    why = (
        "the connection closed during the login" if isinstance(error, EOFError) else str(error) or type(error).__name__
    )
    return Unreachable(f"unreachable: {where}: {why}.", where=name)
