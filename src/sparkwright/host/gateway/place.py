"""Folders and files of a gateway, and its verified states: the last one and those before it, each with its files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed, Refused
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


def state_of(context: Context) -> StateFolder:
    """Return the gateway's own state folder: its verified states are separate from those of the host's server."""
    return of(context.state)


def of(host: StateFolder) -> StateFolder:
    """Return the gateway's part of a host's state folder."""
    return StateFolder(host.path / FOLDER)


def folder(context: Context, *below: str) -> Path:
    """Return a folder of the gateway; create it if missing."""
    context.state.folder()
    return state_of(context).folder(*below)


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
    kept = operations.hashes_in(read(current(state_of(context)).files).get(operations.OPERATORS, ""), operators)
    known = {name: hashed for name, hashed in operators.items() if hashed}
    found[operations.OPERATORS] = clients.keys({**kept, **known})
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


# The verified states of a gateway: the last one and those before it, each with its files.
#
# A state holds spec (the container), digest (of its files), container_id, models, proof (the requests of
# `gateway_proof`), run, since, and script (the docker run command) if one was written.


KEPT = 5


def kept(context: Context, digest: str) -> dict[str, str]:
    """Return the files of a state that is to run again. Raises Failed if they are gone."""
    found = files(context, digest)
    if not found:
        raise Failed("the files of that gateway are no longer on the host.", fix="`invoke gateway.deploy` makes one.")
    return found


def last(context: Context) -> dict[str, Any]:
    """Return the last verified state; empty if there is none."""
    return last_in(state_of(context))


def last_in(gateway: StateFolder) -> dict[str, Any]:
    """Return the last verified state of the gateway in this folder; empty if there is none."""
    return _usable(gateway.read("verified"))


def before(context: Context) -> list[dict[str, Any]]:
    """Return the verified states before the last one, newest first."""
    kept = (state_of(context).read("verified_before") or {}).get("states")
    return [row for row in map(_usable, kept if isinstance(kept, list) else ()) if row]


def files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of the state with this digest; empty if they are gone or were changed."""
    found = read(_folder(context, digest))
    return found if unaltered(found, digest) else {}


def remember(context: Context, now: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Record this as the last verified state, with the present files. A rollback forgets the states that came after it.

    Args:
        now: spec, digest, container_id, models, proof.
    """
    digest, was = now["digest"], last(context)
    known = ([was] if was else []) + before(context)
    again = next((n for n, row in enumerate(known) if _same(row, now)), None)
    if again is not None and "script" in known[again]:
        now = {"script": known[again]["script"], **now}
    older = known[again + 1 :] if rolled_back and again is not None else [row for row in known if not _same(row, now)]
    older = older[:KEPT]
    state = state_of(context)
    write(_folder(context, digest), read(current(state).files))
    state.write("verified_before", {"states": older})
    state.write("verified", {**now, "run": context.run_id, "since": time.time()})
    _tidy(context, {digest, *(row["digest"] for row in older)})


def _folder(context: Context, digest: str) -> Path:
    return folder(context, GOOD) / digest


def _same(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two states describe the same gateway, in whichever container."""
    return first["digest"] == other["digest"] and _essence(first) == _essence(other)


def _essence(state: dict[str, Any]) -> str:
    """Return its container as text: a spec that was read back has lists instead of tuples."""
    return json.dumps({key: value for key, value in state["spec"].items() if key != "image_ids"}, sort_keys=True)


def _tidy(context: Context, needed: set[str]) -> None:
    for path in folder(context, GOOD).iterdir():
        if path.name not in needed:
            drop(path)


def _usable(good: Any) -> dict[str, Any]:
    """Return a state if its fields have the expected types; empty otherwise."""
    if not isinstance(good, dict) or not isinstance(good.get("spec"), dict):
        return {}
    digest = good.get("digest")
    return good if isinstance(digest, str) and STEP.fullmatch(digest) and good["spec"].get("name") else {}
