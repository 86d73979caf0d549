"""Where to connect, as the user's own ssh reads its configuration: `ssh -G`, with Include, Match, aliases and all."""

from __future__ import annotations

import functools
import re
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.inventory.host import Host
from sparkwright.shell import join

AT_ONCE = 16


@dataclass(frozen=True)
class SshTarget:
    """What ssh would do. jump: the hosts of ProxyJump in their order. check_as: the name the host's key is known under.

    strict: yes, ask, accept-new or no. address: what the user wrote, an alias perhaps.
    """

    hostname: str
    user: str
    port: int
    identity_files: tuple[Path, ...] = ()
    jump: tuple[str, ...] = ()
    proxy_command: str = ""
    known_hosts: tuple[Path, ...] = ()
    check_as: str = ""
    strict: str = "ask"
    agent: bool = True
    address: str = ""

    @property
    def known_as(self) -> str:
        """The name of its line in known_hosts."""
        name = self.check_as or self.hostname
        return name if self.port == 22 or self.check_as else f"[{name}]:{self.port}"

    @property
    def by_hand(self) -> str:
        """The command a person logs in with; ssh finds the jump hosts itself."""
        port = ["-p", self.port] if self.port != 22 else []
        return join(["ssh", *port, f"{self.user}@{self.address or self.hostname}"])

    @property
    def proxy(self) -> str:
        """ProxyCommand with its tokens filled in; ssh -G prints it as it was written."""
        tokens = {"h": self.hostname, "n": self.address, "p": str(self.port), "r": self.user, "%": "%"}
        return re.sub(r"%([hnpr%])", lambda found: tokens[found[1]], self.proxy_command)


def begin(host: Host) -> None:
    """Start resolving a host in the background; `resolve` then waits for that."""
    _resolving(host.address, host.user or "", host.port or 0)


def resolve(host: Host) -> SshTarget:
    """The target of an inventory host. Raises Refused when ssh can't read its configuration."""
    return _resolving(host.address, host.user or "", host.port or 0).result()


@functools.lru_cache(maxsize=512)
def _resolving(address: str, user: str, port: int) -> Future[SshTarget]:
    return _pool().submit(_resolve, address, user, port)


@functools.lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="ssh -G")


def _resolve(address: str, user: str, port: int) -> SshTarget:
    words = ["ssh", "-G", *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", address]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        raise Refused("there is no ssh on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        raise Refused(
            f"`ssh -G {address}` does not end.", fix="Look for a `Match exec` in your ssh configuration."
        ) from None
    if said.returncode:
        raise Refused(f"ssh can't read its configuration for {address}: {said.stderr.strip()}")
    return replace(parse(said.stdout), address=address)


def jump_target(spec: str) -> SshTarget:
    """The target of one hop of ProxyJump: [user@]host[:port]."""
    user, _, rest = spec.rpartition("@")
    name, _, port = rest.rpartition(":") if rest.count(":") == 1 else (rest, "", "")
    return _resolve(name or rest, user, int(port or 0))


def parse(text: str) -> SshTarget:
    """What `ssh -G` printed."""
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        rows.setdefault(key, []).append(value)

    def first(key: str, default: str = "") -> str:
        return rows.get(key, [default])[0]

    def files(key: str) -> tuple[Path, ...]:
        return tuple(Path(one).expanduser() for value in rows.get(key, []) for one in value.split())

    jump = first("proxyjump", "none")
    command = first("proxycommand", "none")
    return SshTarget(
        hostname=first("hostname"),
        user=first("user"),
        port=int(first("port", "22")),
        identity_files=tuple(path for path in files("identityfile") if path.exists()),
        jump=() if jump == "none" else tuple(jump.split(",")),
        proxy_command="" if command == "none" else command,
        known_hosts=files("userknownhostsfile") + files("globalknownhostsfile"),
        check_as=first("hostkeyalias") if first("hostkeyalias") != "none" else "",
        strict={"true": "yes", "false": "no"}.get(
            first("stricthostkeychecking"), first("stricthostkeychecking", "ask")
        ),
        agent=first("identityagent") != "none",
    )
