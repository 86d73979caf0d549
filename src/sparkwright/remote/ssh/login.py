"""The connection of one login: over its jump hosts, every host key checked, each failure a sentence. ssh_link.py uses it.

docs/ssh.md has the measured traps: Fabric accepts any host key and reads no Include, nobody sets TCP_NODELAY, and a channel waits
an hour by default.
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

from sparkwright.errors import Refused, SparkwrightError, Unreachable
from sparkwright.remote.ssh import host_keys, ssh_config
from sparkwright.remote.ssh.identities import Login
from sparkwright.remote.ssh.ssh_config import SshTarget
from sparkwright.shell import join
from sparkwright.transport.connection import dial

CONNECT_S = 10.0
CHANNEL_S = 10.0
DROPPED_PAUSES_S = (0.3, 0.6, 1.2, 2.4)
_NO_ANSWER = ("banner", "timeout", "timed out", "no existing session")  # paramiko's words for it

logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # it prints tracebacks of errors that are handled here


class _Dropped(Unreachable):
    """The host answered, and hung up before the login."""


def opened(target: SshTarget, name: str, say: Callable[[str], None], through: tuple[str, ...] = ()) -> Connection:
    """Return a connection, over its jump hosts, with every key checked.

    Raises Unreachable; Refused if the jump hosts form a circle.
    """
    gateway: Connection | None = None
    try:
        for hop in target.jump:
            if hop in through:
                raise Refused(f"ProxyJump goes in a circle: {' > '.join((*through, hop))}.", where=name)
            over, where = ssh_config.jump_target(hop), f"{name} (over {hop})"
            if gateway is None and over.jump != target.jump:  # equal: `Host *` names the jump host for itself too
                gateway = opened(over, where, say, (*through, hop))
            else:
                gateway = _one(over, where, gateway, say)
        return _one(target, name, gateway, say)
    except BaseException:
        if gateway is not None:
            gateway.close()
        raise


def _one(target: SshTarget, name: str, gateway: Connection | None, say: Callable[[str], None]) -> Connection:
    """Connect one hop, with retries if it hangs up before the login.

    An sshd or a jump host hangs up on the eleventh concurrent login.
    """
    for pause_s in DROPPED_PAUSES_S:
        try:
            return _once(target, name, gateway, say)
        except _Dropped:
            # those that were dropped together must not retry together
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
        except BaseException:  # at once: sshd counts who stays without a login, and turns others away (MaxStartups)
            connection.client.close()
            raise
    except SparkwrightError as error:
        error.where = error.where or name
        raise
    except Exception as error:
        if "banner" in str(error) and time.monotonic() - began_s < CONNECT_S / 2:
            where = target.shown
            fix = "Too many logins at once? `MaxStartups` of its sshd says how many it takes."
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
    """Return the error of paramiko or the network as a sentence."""
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
