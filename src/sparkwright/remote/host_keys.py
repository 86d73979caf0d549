"""Host keys are checked against the user's known_hosts; an unknown or changed one is refused with what would mend it."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import paramiko

from sparkwright.errors import Unreachable
from sparkwright.remote.ssh_config import SshTarget
from sparkwright.shell import join


def prepare(client: paramiko.SSHClient, target: SshTarget) -> None:
    """Give a client the keys that are known for a target, and a policy that never accepts silently."""
    dialled = target.hostname if target.port == 22 else f"[{target.hostname}]:{target.port}"
    keys = client.get_host_keys()
    for path in target.known_hosts:
        for kind, key in (known(path).lookup(target.known_as) or {}).items():
            keys.add(dialled, kind, key)
    client.set_missing_host_key_policy(_Policy(target))


def known(path: Any) -> paramiko.HostKeys:
    """The keys of a known_hosts file; a file that is not there holds none."""
    try:
        return paramiko.HostKeys(str(path))
    except OSError:
        return paramiko.HostKeys()


def changed(target: SshTarget, error: paramiko.BadHostKeyException) -> Unreachable:
    """The refusal of a key that differs from the known one."""
    return Unreachable(
        f"the key of {target.known_as} is not the known one: {fingerprint(error.key)}, not {fingerprint(error.expected_key)}."
        " Somebody may be in between, or the host was installed anew.",
        fix=f"If it was: `{join(['ssh-keygen', '-R', target.known_as])}`, then log in once with ssh and compare the new one.",
    )


def fingerprint(key: paramiko.PKey) -> str:
    """SHA256:..., as ssh shows it."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class _Policy(paramiko.MissingHostKeyPolicy):
    def __init__(self, target: SshTarget) -> None:
        self._target = target

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Unknown: accepted only when the user's own ssh configuration says so, and then written down."""
        target = self._target
        if target.strict in ("accept-new", "no") and target.known_hosts:
            path = target.known_hosts[0]
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("a") as file:
                file.write(f"{target.known_as} {key.get_name()} {key.get_base64()}\n")
            return
        words = ["ssh", *(["-p", str(target.port)] if target.port != 22 else []), f"{target.user}@{target.hostname}"]
        raise Unreachable(
            f"the key of {target.known_as} is not known yet: {fingerprint(key)}.",
            fix=f"Log in once by hand, compare it, and answer yes: `{join(words)}`.",
        )
