"""Folders of a gateway, and writing its files.

~/.local/state/sparkwright/gateway/files        HAProxy's files: mounted read-only
                                  /sockets      created by HAProxy; the only folder that its container may write to
                                  /candidate    files to validate before anything is changed
                                  /good/DIGEST  the files of verified states
                                  /config       files and sockets in one, of 0.1: until the next deploy

All of it is 0700 and 0600: it contains server keys and the hash of the clients' key. Files are read by name and up to a size, and
no link is followed: a container of an earlier release could write to `config`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.gateway import clients, listeners, operations, render
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import private
from sparkwright.trust.names import STEP

FOLDER, FILES, SOCKETS, CANDIDATE, GOOD = "gateway", "files", "sockets", "candidate", "good"
#: of 0.1, and the folder that their containers start in
EARLIER, EARLIER_WORKING_DIR = "config", "/etc/gateway"
DIGEST_CHARS = 16
#: every file that a gateway may have; "operations" is one of 0.1
NAMES = frozenset((*render.NAMES, "operations"))
#: limit of one file
LARGEST_BYTES = 8 * 2**20
#: other files in the folder of a configuration
OWN = (operations.STATES,)


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a gateway's files and sockets."""

    files: Path
    sockets: Path

    @property
    def earlier(self) -> bool:
        """True for a gateway of 0.1: its container may write to the one folder of files and sockets."""
        return self.files == self.sockets


def current(gateway: StateFolder) -> Place:
    """Return the folders of the present gateway's files and sockets.

    Args:
        gateway: its state folder.
    """
    files, earlier = gateway.path / FILES, gateway.path / EARLIER
    if not (files / render.CONFIG).exists() and earlier.is_dir():
        return Place(earlier, earlier)
    return Place(files, gateway.path / SOCKETS)


def is_earlier(spec: Mapping[str, Any]) -> bool:
    """Return True if a container's spec is one of 0.1."""
    return spec.get("working_dir") == EARLIER_WORKING_DIR


def state(context: Context) -> StateFolder:
    """Return the gateway's own state folder: its verified states are separate from those of the host's server."""
    return of(context.state)


def of(host: StateFolder) -> StateFolder:
    """Return the gateway's part of a host's state folder."""
    return StateFolder(host.path / FOLDER)


def folder(context: Context, *below: str) -> Path:
    """Return a folder of the gateway; create it if missing."""
    context.state.folder()
    return state(context).folder(*below)


def composed(
    files: Mapping[str, str],
    client_key: str,
    server_keys: Mapping[str, str],
    certificate: str,
    operators: Mapping[str, str],
    named: Mapping[str, str],
    context: Context,
) -> dict[str, str]:
    """Return all files of a gateway, by name.

    The configuration contains the digest of them all, so that a running HAProxy reveals which files it uses.

    Args:
        client_key, certificate: names of secrets; empty for none.
        server_keys: names of secrets, by backend.
        operators: the SHA-256 of the hosts' keys; empty for a host that could not be reached, whose entry then stays.
        named: names of secrets, by client.

    Raises:
        Refused: A secret was not sent with this run.
    """
    found = dict(files)
    if client_key:
        found[render.CLIENT_KEYS] = f"{_hashed(client_key, context)}\n"
    if named:
        found[clients.KEYS] = clients.keys({client: _hashed(name, context) for client, name in named.items()})
    if server_keys:
        rows = sorted(server_keys.items())
        found[render.SERVER_KEYS] = "".join(f"{backend} {_secret(name, context)}\n" for backend, name in rows)
    if certificate:
        found[listeners.CERTIFICATE] = _secret(certificate, context)
    kept = operations.hashes_in(read(current(state(context)).files).get(operations.OPERATORS, ""), operators)
    known = {name: hashed for name, hashed in operators.items() if hashed}
    found[operations.OPERATORS] = operations.operators({**kept, **known})
    digest = digest_of(found)
    return found | {render.CONFIG: found[render.CONFIG].replace(render.DIGEST, digest)}


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of files, before the configuration contains it."""
    total = hashlib.sha256()
    for name, text in sorted(files.items()):
        total.update(f"{name}\0{len(text)}\0{text}".encode())
    return total.hexdigest()[:DIGEST_CHARS]


def digest_in(config: str, name: str) -> str:
    """Return the digest that a configuration contains.

    Args:
        name: the gateway's.
    """
    return config.partition(f"description '{name} ")[2].partition("'")[0]


def unaltered(files: Mapping[str, str], digest: str) -> bool:
    """Return True if these files are, byte for byte, those of a digest."""
    config = files.get(render.CONFIG, "").replace(digest, render.DIGEST)
    return digest_of({**files, render.CONFIG: config}) == digest


def read(path: Path, names: Iterable[str] = NAMES) -> dict[str, str]:
    """Return these files of a folder by name; empty if it does not exist.

    Links, pipes, files that are too large and non-text files are left out.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in sorted(names):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = _text(folder, name)
        finally:
            os.close(folder)
    return found


def _text(folder: int, name: str) -> str:
    """Return the content of a file. Raises OSError or ValueError unless it is a text file of limited size."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(name)
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise ValueError(name)
    return content.decode()


def write(path: Path, files: Mapping[str, str]) -> None:
    """Write these files to a folder and remove all others; folders and sockets stay."""
    private.folder(path)
    for name, text in files.items():
        if not STEP.fullmatch(name):
            raise Refused(f"a gateway has no file '{name}'.")
        write_atomically(path / name, text.encode())
    for found in path.iterdir():
        kind = found.lstat().st_mode
        if found.name not in (*files, *OWN) and (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            found.unlink(missing_ok=True)


def drop(path: Path) -> None:
    """Remove a folder; if a container nested folders deeper than Python can remove, only the gateway's own files."""
    if path.is_dir() and not path.is_symlink():
        write(path, {})
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _hashed(name: str, context: Context) -> str:
    return hashlib.sha256(_secret(name, context).encode()).hexdigest()


def _secret(name: str, context: Context) -> str:
    found = context.secrets.get(name)
    if not found:
        raise Refused(f"{name} was not sent with this run.", fix="Use `gateway.deploy`.")
    return found.reveal()
