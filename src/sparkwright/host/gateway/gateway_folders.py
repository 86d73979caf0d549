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
from sparkwright.trust.names import PATH_COMPONENT

FOLDER, FILES, SOCKETS, CANDIDATE, VERIFIED = "gateway", "files", "sockets", "candidate", "good"
#: of 0.1, and the folder that their containers start in
LEGACY_FOLDER, LEGACY_WORKING_DIR = "config", "/etc/gateway"
DIGEST_CHARS = 16
#: every file that a gateway may have; "operations" is one of 0.1
FILE_NAMES = frozenset((*render.FILE_NAMES, "operations"))
#: limit of one file
MAX_FILE_BYTES = 8 * 2**20
#: other files in the folder of a configuration
OWN_FILES = (operations.STATES_FILE,)


@dataclass(frozen=True, slots=True)
class GatewayFolders:
    """The folders of a gateway's files and sockets."""

    files: Path
    sockets: Path

    @property
    def is_legacy(self) -> bool:
        """True for a gateway of 0.1: its container may write to the one folder of files and sockets."""
        return self.files == self.sockets


def current_folders(gateway: StateFolder) -> GatewayFolders:
    """Return the folders of the present gateway's files and sockets.

    Args:
        gateway: its state folder.
    """
    files, legacy = gateway.path / FILES, gateway.path / LEGACY_FOLDER
    if not (files / render.CONFIG_FILE).exists() and legacy.is_dir():
        return GatewayFolders(legacy, legacy)
    return GatewayFolders(files, gateway.path / SOCKETS)


def is_legacy(spec: Mapping[str, Any]) -> bool:
    """Return True if a container's spec is one of 0.1."""
    return spec.get("working_dir") == LEGACY_WORKING_DIR


def state_of(context: Context) -> StateFolder:
    """Return the gateway's own state folder: its verified states are separate from those of the host's server."""
    return state_in(context.state)


def state_in(host: StateFolder) -> StateFolder:
    """Return the gateway's part of a host's state folder."""
    return StateFolder(host.path / FOLDER)


def folder(context: Context, *below: str) -> Path:
    """Return a folder of the gateway; create it if missing."""
    context.state.folder()
    return state_of(context).folder(*below)


def compose_files(
    files: Mapping[str, str],
    client_key: str,
    server_keys: Mapping[str, str],
    certificate: str,
    operators: Mapping[str, str],
    client_secrets: Mapping[str, str],
    context: Context,
) -> dict[str, str]:
    """Return all files of a gateway, by name.

    The configuration contains the digest of them all, so that a running HAProxy reveals which files it uses.

    Args:
        client_key, certificate: names of secrets; empty for none.
        server_keys: names of secrets, by backend.
        operators: the SHA-256 of the hosts' keys; empty for a host that could not be reached, whose entry then stays.
        client_secrets: names of secrets, by client.

    Raises:
        Refused: A secret was not sent with this run.
    """
    contents = dict(files)
    if client_key:
        contents[render.CLIENT_KEYS_FILE] = f"{_hash_secret(client_key, context)}\n"
    if client_secrets:
        contents[clients.KEYS_FILE] = clients.format_keys(
            {client: _hash_secret(name, context) for client, name in client_secrets.items()}
        )
    if server_keys:
        rows = sorted(server_keys.items())
        contents[render.SERVER_KEYS_FILE] = "".join(
            f"{backend} {_reveal_secret(name, context)}\n" for backend, name in rows
        )
    if certificate:
        contents[listeners.CERTIFICATE_FILE] = _reveal_secret(certificate, context)
    retained = operations.parse_key_hashes(
        read_files(current_folders(state_of(context)).files).get(operations.OPERATORS_FILE, ""), operators
    )
    reported = {name: hashed for name, hashed in operators.items() if hashed}
    contents[operations.OPERATORS_FILE] = clients.format_keys({**retained, **reported})
    digest = digest_of(contents)
    return contents | {render.CONFIG_FILE: contents[render.CONFIG_FILE].replace(render.DIGEST_PLACEHOLDER, digest)}


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of files, before the configuration contains it."""
    total = hashlib.sha256()
    for name, text in sorted(files.items()):
        total.update(f"{name}\0{len(text)}\0{text}".encode())
    return total.hexdigest()[:DIGEST_CHARS]


def parse_digest(config: str, name: str) -> str:
    """Return the digest that a configuration contains.

    Args:
        name: the gateway's.
    """
    return config.partition(f"description '{name} ")[2].partition("'")[0]


def is_unaltered(files: Mapping[str, str], digest: str) -> bool:
    """Return True if these files are, byte for byte, those of a digest."""
    config = files.get(render.CONFIG_FILE, "").replace(digest, render.DIGEST_PLACEHOLDER)
    return digest_of({**files, render.CONFIG_FILE: config}) == digest


def read_files(path: Path, names: Iterable[str] = FILE_NAMES) -> dict[str, str]:
    """Return these files of a folder by name; empty if it does not exist.

    Links, pipes, files that are too large and non-text files are left out.
    """
    contents: dict[str, str] = {}
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in sorted(names):
                with contextlib.suppress(OSError, ValueError):
                    contents[name] = _read_text(handle, name)
        finally:
            os.close(handle)
    return contents


def _read_text(folder_fd: int, name: str) -> str:
    """Return the content of a file. Raises OSError or ValueError unless it is a text file of limited size."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder_fd), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(name)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(name)
    return content.decode()


def write_files(path: Path, files: Mapping[str, str]) -> None:
    """Write these files to a folder and remove all others; folders and sockets stay."""
    private.create_folder(path)
    for name, text in files.items():
        if not PATH_COMPONENT.fullmatch(name):
            raise Refused(f"a gateway has no file '{name}'.")
        write_atomically(path / name, text.encode())
    for entry in path.iterdir():
        kind = entry.lstat().st_mode
        if entry.name not in (*files, *OWN_FILES) and (stat.S_ISREG(kind) or stat.S_ISLNK(kind)):
            entry.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; if a container nested folders deeper than Python can remove, only the gateway's own files."""
    if path.is_dir() and not path.is_symlink():
        write_files(path, {})
        with contextlib.suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=True)


def _hash_secret(name: str, context: Context) -> str:
    return hashlib.sha256(_reveal_secret(name, context).encode()).hexdigest()


def _reveal_secret(name: str, context: Context) -> str:
    secret = context.secrets.get(name)
    if not secret:
        raise Refused(f"{name} was not sent with this run.", fix="Use `gateway.deploy`.")
    return secret.reveal()


# The verified states of a gateway: the last one and those before it, each with its files.
#
# A state holds spec (the container), digest (of its files), container_id, models, proof (the requests of
# `gateway_proof`), run, since, and script (the docker run command) if one was written.


MAX_KEPT = 5


def require_files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of a state that is to run again. Raises Failed if they are gone."""
    contents = state_files(context, digest)
    if not contents:
        raise Failed("the files of that gateway are no longer on the host.", fix="`invoke gateway.deploy` makes one.")
    return contents


def load_last(context: Context) -> dict[str, Any]:
    """Return the last verified state; empty if there is none."""
    return load_last_in(state_of(context))


def load_last_in(gateway: StateFolder) -> dict[str, Any]:
    """Return the last verified state of the gateway in this folder; empty if there is none."""
    return _validate_state(gateway.read("verified"))


def load_earlier(context: Context) -> list[dict[str, Any]]:
    """Return the verified states before the last one, newest first."""
    states = (state_of(context).read("verified_before") or {}).get("states")
    return [row for row in map(_validate_state, states if isinstance(states, list) else ()) if row]


def state_files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of the state with this digest; empty if they are gone or were changed."""
    contents = read_files(_state_folder(context, digest))
    return contents if is_unaltered(contents, digest) else {}


def save_verified(context: Context, new_state: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Record this as the last verified state, with the present files. A rollback forgets the states that came after it.

    Args:
        new_state: spec, digest, container_id, models, proof.
    """
    digest, previous = new_state["digest"], load_last(context)
    states = ([previous] if previous else []) + load_earlier(context)
    match_index = next((n for n, row in enumerate(states) if _is_same(row, new_state)), None)
    if match_index is not None and "script" in states[match_index]:
        new_state = {"script": states[match_index]["script"], **new_state}
    older = (
        states[match_index + 1 :]
        if rolled_back and match_index is not None
        else [row for row in states if not _is_same(row, new_state)]
    )
    older = older[:MAX_KEPT]
    state = state_of(context)
    write_files(_state_folder(context, digest), read_files(current_folders(state).files))
    state.write("verified_before", {"states": older})
    state.write("verified", {**new_state, "run": context.run_id, "since": time.time()})
    _remove_unneeded(context, {digest, *(row["digest"] for row in older)})


def _state_folder(context: Context, digest: str) -> Path:
    return folder(context, VERIFIED) / digest


def _is_same(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two states describe the same gateway, in whichever container."""
    return first["digest"] == other["digest"] and _comparable_spec(first) == _comparable_spec(other)


def _comparable_spec(state: dict[str, Any]) -> str:
    """Return its container as text: a spec that was read back has lists instead of tuples."""
    return json.dumps({key: value for key, value in state["spec"].items() if key != "image_ids"}, sort_keys=True)


def _remove_unneeded(context: Context, needed: set[str]) -> None:
    for path in folder(context, VERIFIED).iterdir():
        if path.name not in needed:
            remove_folder(path)


def _validate_state(data: Any) -> dict[str, Any]:
    """Return a state if its fields have the expected types; empty otherwise."""
    if not isinstance(data, dict) or not isinstance(data.get("spec"), dict):
        return {}
    digest = data.get("digest")
    return data if isinstance(digest, str) and PATH_COMPONENT.fullmatch(digest) and data["spec"].get("name") else {}
