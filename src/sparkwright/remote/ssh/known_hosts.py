"""The known keys of a host: the lines of known_hosts files, of KnownHostsCommand, and RevokedHostKeys.

The lines of a host are looked up by ssh-keygen: it handles hashed names, patterns and markers as ssh does.
"""

from __future__ import annotations

import base64
import binascii
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import paramiko

from sparkwright.errors import Refused
from sparkwright.remote.ssh import ssh_tokens
from sparkwright.remote.ssh.ssh_target import SshTarget, is_file
from sparkwright.visible import one_line

REVOKED, AUTHORITY = "@revoked", "@cert-authority"
KRL_MAGIC = b"SSHKRL\n\0"
COMMAND_S = 10.0


class Known(NamedTuple):
    """A line of known_hosts."""

    #: "", "@revoked" or "@cert-authority"
    marker: str
    #: the type of the key, as the line has it
    kind: str
    key: bytes


def lines(target: SshTarget, name: str, key: paramiko.PKey | None = None) -> list[Known]:
    """Return the lines for a name, the user's files first. key: the one that the host presented; None before.

    Raises Refused if KnownHostsCommand fails.
    """
    found: list[Known] = []
    for path in target.known_hosts:
        if is_file(path):
            found += _matching(name, str(path), b"")
    if target.known_hosts_command:
        found += _matching(name, "/dev/stdin", _command(target, name, key))
    return found


def read(printed: bytes) -> Iterator[Known]:
    """Parse the output of `ssh-keygen -F`; invalid lines are skipped, as in ssh."""
    for line in printed.decode(errors="replace").split("\n"):
        fields = line.split()
        marker = fields.pop(0) if line.startswith("@") and fields else ""
        if len(fields) >= 3 and not line.startswith("#"):
            try:
                yield Known(marker, fields[1], base64.b64decode(fields[2], validate=True))
            except (binascii.Error, ValueError):
                continue


def revoked(path: Path, key: paramiko.PKey) -> bool:
    """Return True if RevokedHostKeys lists a key. Raises Refused if the list can't be read: ssh trusts no key then either."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"RevokedHostKeys of ssh can't be read: {path}: {error.strerror}.") from None
    if data.startswith(KRL_MAGIC):
        return _in_krl(path, key)
    for number, line in enumerate(data.decode(errors="replace").split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            listed = base64.b64decode(fields[1], validate=True)
        except (IndexError, ValueError):
            raise Refused(f"RevokedHostKeys of ssh has a line that is no key: {path}:{number}.") from None
        if listed == key.asbytes():
            return True
    return False


def _in_krl(path: Path, key: paramiko.PKey) -> bool:
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
        file.write(f"{key.get_name()} {key.get_base64()}\n")
        file.flush()
        answer = _keygen(["-Q", "-f", str(path), file.name])
    if answer.returncode and b"REVOKED" not in answer.stdout:
        why = one_line(answer.stderr.decode(errors="replace").strip(), at_most=200)
        raise Refused(f"RevokedHostKeys of ssh can't be read: {path}: {why}.")
    return answer.returncode != 0


def _matching(name: str, path: str, given: bytes) -> list[Known]:
    return list(read(_keygen(["-F", name, "-f", path], given).stdout))


def _keygen(words: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", *words], input=given, capture_output=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        raise Refused("there is no ssh-keygen on this machine.", fix="Install the OpenSSH client.") from None
    except subprocess.TimeoutExpired:
        raise Refused(f"`ssh-keygen {words[0]}` does not end within {COMMAND_S:g} s.") from None


def _command(target: SshTarget, name: str, key: paramiko.PKey | None) -> bytes:
    """Return the output of KnownHostsCommand. It is split as ssh splits it, and runs without a shell."""
    about = {"I": "ORDER", **dict.fromkeys("tfK", "NONE")}  # before the host is asked
    if key:
        about = {"I": "HOSTNAME", "t": key.get_name(), "f": key.fingerprint, "K": key.get_base64()}
    tokens = {**target.tokens, "H": name, **about}
    try:
        words = [ssh_tokens.fill("KnownHostsCommand", word, tokens) for word in shlex.split(target.known_hosts_command)]
        answer = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, ValueError, IndexError) as error:
        fix = "Its program needs its full path."
        raise Refused(f"KnownHostsCommand of ssh can't be run: {error}.", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"KnownHostsCommand of ssh does not end within {COMMAND_S:g} s.") from None
    if answer.returncode:
        last = one_line(answer.stderr.decode(errors="replace").strip(), at_most=200)
        raise Refused(f"KnownHostsCommand of ssh failed with {answer.returncode}{f': {last}' if last else ''}.")
    return answer.stdout
