"""The ssh configuration of a host, as the user's own ssh reads it: `ssh -G`, with Include, Match, aliases and all."""

from __future__ import annotations

import functools
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor

from sparkwright.defaults import FORKS
from sparkwright.errors import Refused
from sparkwright.project.inventory.host import Host
from sparkwright.remote.ssh import ssh_target
from sparkwright.remote.ssh.ssh_target import SshTarget
from sparkwright.visible import one_line


def begin(host: Host) -> None:
    """Start resolving a host in the background; `resolve` then waits for it."""
    _resolving(host.address, host.user or "", host.port or 0)


def resolve(host: Host) -> SshTarget:
    """Return the target of an inventory host. Raises Refused if ssh can't read its configuration."""
    return _resolving(host.address, host.user or "", host.port or 0).result()


def jump_target(spec: str) -> SshTarget:
    """Return the target of one hop of ProxyJump. Raises Refused."""
    return _resolve(*ssh_target.hop(spec))


@functools.lru_cache(maxsize=512)
def _resolving(address: str, user: str, port: int) -> Future[SshTarget]:
    return _pool().submit(_resolve, address, user, port)


@functools.lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=FORKS, thread_name_prefix="ssh -G")


def _resolve(address: str, user: str, port: int) -> SshTarget:
    words = ["ssh", "-G", *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", address]
    try:
        # paths are bytes, not always UTF-8
        answer = subprocess.run(
            words, capture_output=True, text=True, errors="surrogateescape", timeout=10, check=False
        )
    except FileNotFoundError:
        raise Refused("there is no ssh on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        fix = "Look for a `Match exec` in your ssh configuration."
        raise Refused(f"`ssh -G {address}` does not end.", fix=fix) from None
    if answer.returncode:
        why = one_line(" ".join(answer.stderr.split()), at_most=400)
        raise Refused(f"ssh can't read its configuration for {address}: {why}")
    return ssh_target.parse(answer.stdout, address)
