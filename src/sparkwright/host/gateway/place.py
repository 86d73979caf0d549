"""Folders of a gateway, and how their files come to be what is wanted.

~/.local/state/sparkwright/gateway/files        what HAProxy reads: its container sees it read-only
                                  /sockets      made by HAProxy; the one folder that its container may write to
                                  /candidate    what is checked before anything is touched
                                  /good/DIGEST  the files of states that were verified
                                  /config       files and sockets in one, of releases before 0.36: until the next deploy
All of it is 0700 and 0600: server keys are in it, and the hash of the clients' key. A file is read by its name and by its size,
and no link is followed: a container of an earlier release could write to `config`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
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
#: of releases before 0.36, and the folder that their containers start in
EARLIER, EARLIER_WORKING_DIR = "config", "/etc/gateway"
DIGEST_CHARS = 16
#: every file that a gateway may have; "operations" is one of releases before 0.36
NAMES = frozenset((*render.NAMES, "operations"))
#: of one file
LARGEST_BYTES = 8 * 2**20
#: what stands beside the files of a configuration
OWN = (operations.STATES,)


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a gateway's files and sockets."""

    files: Path
    sockets: Path

    @property
    def earlier(self) -> bool:
        """True of a gateway of releases before 0.36: files and sockets lie in one folder, which its container may write to."""
        return self.files == self.sockets


def current(gateway: StateFolder) -> Place:
    """Return where the files and sockets of the present gateway are. gateway: its folder."""
    files, earlier = gateway.path / FILES, gateway.path / EARLIER
    if not (files / render.CONFIG).exists() and earlier.is_dir():
        return Place(earlier, earlier)
    return Place(files, gateway.path / SOCKETS)


def is_earlier(spec: Mapping[str, Any]) -> bool:
    """Return whether a container's spec is one of releases before 0.36."""
    return spec.get("working_dir") == EARLIER_WORKING_DIR


def state(context: Context) -> StateFolder:
    """The gateway's part of the state folder: what was verified of it is apart from what was of the host's server."""
    return of(context.state)


def of(host: StateFolder) -> StateFolder:
    """The gateway's part of a host's state folder."""
    return StateFolder(host.path / FOLDER)


def folder(context: Context, *below: str) -> Path:
    """A folder of the gateway, made when absent."""
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
    """All files by name. client_key, certificate: names of secrets, empty for none. server_keys: of secrets by backend.

    operators: the SHA-256 of the hosts' keys; that of a host which could not be asked is empty, and then stays what it was.
    named: of secrets by client.

    The configuration names the digest of them all, so that a running HAProxy tells which it reads. Raises Refused where a
    secret did not come with this run.
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
    """Names the content of files, before the configuration names it."""
    total = hashlib.sha256()
    for name, text in sorted(files.items()):
        total.update(f"{name}\0{len(text)}\0{text}".encode())
    return total.hexdigest()[:DIGEST_CHARS]


def digest_in(config: str, name: str) -> str:
    """The digest that a configuration names. name: the gateway's."""
    return config.partition(f"description '{name} ")[2].partition("'")[0]


def unaltered(files: Mapping[str, str], digest: str) -> bool:
    """Return whether these files are, to the byte, those that a digest was made of."""
    config = files.get(render.CONFIG, "").replace(digest, render.DIGEST)
    return digest_of({**files, render.CONFIG: config}) == digest


def read(path: Path) -> dict[str, str]:
    """Return the files of one of these folders by name; none where it is not there.

    A link, a pipe, a file that is too large and one that is no text are absent.
    """
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in sorted(NAMES):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = _text(folder, name)
        finally:
            os.close(folder)
    return found


def _text(folder: int, name: str) -> str:
    """Return the content of a file. Raises OSError or ValueError for what is no text file of a bounded size."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(name)
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise ValueError(name)
    return content.decode()


def write(path: Path, files: Mapping[str, str]) -> None:
    """Make a folder hold these files and no others; a folder or a socket stays."""
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
    """Remove one of these folders; where a container nested folders deeper than Python goes, the gateway's own files alone."""
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
