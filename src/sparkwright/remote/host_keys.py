"""Host keys are checked against the user's known_hosts; an unknown or changed one is refused with what would mend it.

Which lines of known_hosts are a host's is asked of ssh-keygen: it knows hashed names, patterns and markers as ssh does.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import paramiko
from paramiko.pkey import UnknownKeyType

from sparkwright.errors import Unreachable
from sparkwright.remote.ssh_config import SshTarget
from sparkwright.shell import join

REVOKED, AUTHORITY = "@revoked", "@cert-authority"


class Known(NamedTuple):
    """One line of known_hosts. marker: "", "@revoked" or "@cert-authority". key: base64."""

    marker: str
    kind: str
    key: str


def prepare(client: paramiko.SSHClient, target: SshTarget, say: Callable[[str], None]) -> None:
    """Give a client the keys that are known for a target, and a policy that never accepts silently."""
    lines = known(target)
    revoked = {line.key for line in lines if line.marker == REVOKED}
    dialled = target.hostname if target.port == 22 else f"[{target.hostname}]:{target.port}"
    keys = client.get_host_keys()
    kinds: set[str] = set()
    for line in lines:
        if not line.marker and line.key not in revoked and line.kind not in kinds:
            kinds.add(line.kind)  # of two keys of a kind paramiko compares one: the first
            try:
                keys.add(dialled, line.kind, paramiko.PKey.from_type_string(line.kind, base64.b64decode(line.key)))
            except (paramiko.SSHException, UnknownKeyType, ValueError):
                continue  # a kind that paramiko can't speak is never negotiated
    client.set_missing_host_key_policy(_Policy(target, lines, say))


def known(target: SshTarget) -> list[Known]:
    """The lines for a target, the user's files first."""
    found = []
    for path in target.known_hosts:
        if not path.is_file():
            continue
        words = ["ssh-keygen", "-F", target.known_as, "-f", str(path)]
        said = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=10, check=False)
        for line in said.stdout.splitlines():
            fields = line.split()
            marker = fields.pop(0) if line.startswith("@") else ""
            if len(fields) >= 3 and not line.startswith("#"):
                found.append(Known(marker, fields[1], fields[2]))
    return found


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
    def __init__(self, target: SshTarget, lines: list[Known], say: Callable[[str], None]) -> None:
        self._target = target
        self._lines = lines
        self._say = say

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Unknown: accepted only when the user's own ssh configuration says so, and then written down and said."""
        target = self._target
        if any(line.marker == REVOKED and line.key == key.get_base64() for line in self._lines):
            raise Unreachable(
                f"the key of {target.known_as} is revoked in known_hosts: {fingerprint(key)}.",
                fix="Whoever answers there holds a key that was given up: give the host a new one.",
            )
        if target.strict in ("accept-new", "no") and target.known_hosts:
            self._keep(key)
            return
        raise Unreachable(f"the key of {target.known_as} is not known yet: {fingerprint(key)}.", fix=self._mend())

    def _keep(self, key: paramiko.PKey) -> None:
        path = self._target.known_hosts[0]
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a+b") as file:
            file.seek(0)
            start = b"" if file.read()[-1:] in (b"", b"\n") else b"\n"
            file.write(start + f"{self._target.known_as} {key.get_name()} {key.get_base64()}\n".encode())
        self._say(f"the new key of {self._target.known_as} is now in {path}: {fingerprint(key)}")

    def _mend(self) -> str:
        target = self._target
        authority = any(line.marker == AUTHORITY for line in self._lines)
        if not authority and target.strict != "yes":
            return f"Log in once by hand, compare it, and answer yes: `{target.by_hand}`."
        scan = join(["ssh-keyscan", "-p", target.port, target.hostname])
        why = "Certificates of hosts are not checked here. " if authority else ""
        return f"{why}Compare it at the host, then add its line: `{scan} >> {target.known_hosts[0]}`."
