"""ssh connections, direct or through jump hosts, with every host key checked.

Replaces defaults of Fabric and Paramiko, which accept any host key, ignore `Include`, don't set TCP_NODELAY, and wait up to an
hour for a channel (docs/ssh.md).
"""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import paramiko
from fabric import Config, Connection

from sparkwright.errors import KeysRejected, Refused, SparkwrightError, Unreachable
from sparkwright.remote.ssh import host_keys, ssh_config
from sparkwright.remote.ssh.login import Login
from sparkwright.remote.ssh.ssh_config import SshTarget
from sparkwright.shell import join
from sparkwright.transport.connection import dial

CONNECT_TIMEOUT_S = 10.0
CHANNEL_TIMEOUT_S = 10.0
RETRY_PAUSES_S = (0.3, 0.6, 1.2, 2.4)
#: words in Paramiko's messages about timeouts
_TIMEOUT_MESSAGES = ("banner", "timeout", "timed out", "no existing session")

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # no tracebacks of errors that are handled here


class _ConnectionDropped(Unreachable):
    """The host closed the connection before the login."""


def open_connection(
    target: SshTarget, name: str, notify: Callable[[str], None], visited: tuple[str, ...] = ()
) -> Connection:
    """Connect to a target through its jump hosts, with every host key checked.

    Args:
        name: the host's name, for messages.
        notify: called with a message for each host key that is accepted as new.
        visited: the jump hosts that led to this target, to detect a loop.

    Raises:
        Unreachable: a host can't be reached, or its key can't be trusted.
        Refused: the jump hosts form a loop.
    """
    gateway: Connection | None = None
    try:
        for hop in target.jump:
            if hop in visited:
                raise Refused(f"ProxyJump forms a loop: {' > '.join((*visited, hop))}.", where=name)
            hop_target, hop_name = ssh_config.jump_target(hop), f"{name} (through {hop})"
            # they are equal if `Host *` makes the jump host its own jump host
            if gateway is None and hop_target.jump != target.jump:
                gateway = open_connection(hop_target, hop_name, notify, (*visited, hop))
            else:
                gateway = _connect_with_retries(hop_target, hop_name, gateway, notify)
        return _connect_with_retries(target, name, gateway, notify)
    except BaseException:
        if gateway is not None:
            gateway.close()
        raise


def _connect_with_retries(
    target: SshTarget, name: str, gateway: Connection | None, notify: Callable[[str], None]
) -> Connection:
    """Connect one hop, retrying if it closes the connection before the login.

    While ten logins are in progress, sshd (on a jump host, too) randomly drops some of the others (MaxStartups 10:30:100).
    """
    for pause_s in RETRY_PAUSES_S:
        try:
            return _connect(target, name, gateway, notify)
        except _ConnectionDropped:
            # jitter: logins that were dropped together must not retry together
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
    started_s = time.monotonic()
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
        except BaseException:
            # close it now, not at garbage collection: sshd counts connections without a login (MaxStartups)
            connection.client.close()
            raise
    except SparkwrightError as error:
        error.where = error.where or name
        raise
    except Exception as error:
        if "banner" in str(error) and time.monotonic() - started_s < CONNECT_TIMEOUT_S / 2:
            message = f"unreachable: {target.display_address} closed the connection before the login."
            fix = "There may be too many concurrent logins: see `MaxStartups` in its sshd_config."
            raise _ConnectionDropped(message, where=name, fix=fix) from None
        raise _login_error(error, target, name, login) from None
    if connection.transport is not None:
        connection.transport.set_keepalive(5)
    return connection


def _open_socket(target: SshTarget) -> socket.socket | paramiko.ProxyCommand:
    if target.proxy_command:
        return paramiko.ProxyCommand(join(["sh", "-c", f"exec {target.expanded_proxy_command}"]))
    return dial(target.hostname, target.port, CONNECT_TIMEOUT_S)  # with TCP_NODELAY


def _login_error(error: Exception, target: SshTarget, name: str, login: Login) -> Unreachable:
    """Convert an error of Paramiko or the network to one with a message and a fix."""
    address = target.display_address
    if isinstance(error, paramiko.PasswordRequiredException):
        fix = "Add it to your agent: `ssh-add`."
        return Unreachable("unreachable: the key has a passphrase and is not in an agent.", where=name, fix=fix)
    if isinstance(error, paramiko.AuthenticationException):
        key_files = ", ".join(str(path) for path in target.identity_files) or "no key file"
        problems = f" ({'; '.join(login.problems)})" if login.problems else ""
        fix = f"Try `{target.manual_login_command}`."
        if not target.uses_public_keys or login.offered_keys:
            message = f"unreachable: {address} rejected every key: the agent's keys and {key_files}{problems}."
            return KeysRejected(message, where=name, fix=fix)
        message = f"unreachable: there is no key to offer to {address}, in an agent or in {key_files}{problems}."
        if not target.identity_files:
            message = f"unreachable: there is no key to offer to {address}, neither in an agent nor in a file."
            fix = "Create a key with `ssh-keygen`, and copy it with `ssh-copy-id`; passwords are not used."
        return Unreachable(message, where=name, fix=fix)
    if isinstance(error, socket.gaierror):
        return Unreachable(f"unreachable: cannot resolve {target.hostname}.", where=name, fix="Check `address:`.")
    if isinstance(error, ConnectionRefusedError) or "Unable to connect" in str(error):
        fix = "Check the port, and that sshd is running."
        return Unreachable(f"unreachable: {address} refuses connections.", where=name, fix=fix)
    if isinstance(error, TimeoutError) or any(word in str(error).lower() for word in _TIMEOUT_MESSAGES):
        return Unreachable(f"unreachable: {address} did not answer within {CONNECT_TIMEOUT_S:g} s.", where=name)
    reason = (
        "the connection was closed during the login"
        if isinstance(error, EOFError)
        else str(error) or type(error).__name__
    )
    return Unreachable(f"unreachable: {address}: {reason}.", where=name)
