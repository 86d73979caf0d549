"""A gateway's folders and files on the host, and its verified states, each with a copy of its files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from sparkwright.errors import Failed, Refused
from sparkwright.gateway import clients, listeners, operations, render
from sparkwright.host.module import Context
from sparkwright.host.records.state_shapes import VERIFIED_STATE_SHAPE
from sparkwright.host.records.verified_states import VerifiedContainer
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import private
from sparkwright.trust.names import PATH_COMPONENT
from sparkwright.trust.shapes import select_valid

FOLDER, FILES_FOLDER, SOCKETS_FOLDER = "gateway", "files", "sockets"
CANDIDATE_FOLDER, VERIFIED_FOLDER = "candidate", "good"
#: the folder of a gateway of version 0.1, and the working directory of its container
LEGACY_FOLDER, LEGACY_WORKING_DIR = "config", "/etc/gateway"
DIGEST_CHARS = 16
#: every file that a gateway may have; "operations" exists only in 0.1
FILE_NAMES = frozenset((*render.FILE_NAMES, "operations"))
#: maximum size of one file
MAX_FILE_BYTES = 8 * 2**20
#: number of verified states to keep before the last one
MAX_EARLIER_STATES = 5


@dataclass(frozen=True, slots=True)
class GatewayFolders:
    """The folders of a gateway's files and sockets."""

    files: Path
    sockets: Path

    @property
    def is_legacy(self) -> bool:
        """True for a gateway of version 0.1: files and sockets share one folder, to which its container may write."""
        return self.files == self.sockets


def current_folders(gateway: StateFolder) -> GatewayFolders:
    """Return the folders of the gateway with this state folder; see `state_of`."""
    files, legacy = gateway.path / FILES_FOLDER, gateway.path / LEGACY_FOLDER
    if not (files / render.CONFIG_FILE).exists() and legacy.is_dir():
        return GatewayFolders(legacy, legacy)
    return GatewayFolders(files, gateway.path / SOCKETS_FOLDER)


def is_legacy(spec: Mapping[str, Any]) -> bool:
    """Return True if a container's spec was written by version 0.1."""
    return spec.get("working_dir") == LEGACY_WORKING_DIR


def state_of(context: Context) -> StateFolder:
    """Return the gateway's state folder, which is separate from that of the host's servers."""
    return state_in(context.state)


def state_in(host: StateFolder) -> StateFolder:
    """Return the gateway's state folder inside a host's state folder."""
    return StateFolder(host.path / FOLDER)


def folder(context: Context, *names: str) -> Path:
    """Return a folder below the gateway's state folder. Creates it if missing."""
    context.state.folder()
    return state_of(context).folder(*names)


def compose_files(
    files: Mapping[str, str],
    client_key: str,
    server_keys: Mapping[str, str],
    certificate: str,
    host_key_hashes: Mapping[str, str],
    client_secrets: Mapping[str, str],
    context: Context,
) -> dict[str, str]:
    """Return the contents of all files of a gateway, by name: the given files and those with secrets.

    The configuration contains the digest of all files, which a running HAProxy reports.

    Args:
        client_key, certificate: names of secrets; empty if the gateway has none.
        server_keys: names of secrets, by backend.
        host_key_hashes: SHA-256 of each host's key, by host; an empty one, as for an unreachable host, keeps the current entry.
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
    current_hashes = operations.parse_key_hashes(
        read_files(current_folders(state_of(context)).files).get(operations.HOST_KEYS_FILE, ""), host_key_hashes
    )
    new_hashes = {host: key_hash for host, key_hash in host_key_hashes.items() if key_hash}
    contents[operations.HOST_KEYS_FILE] = clients.format_keys({**current_hashes, **new_hashes})
    digest = digest_of(contents)
    return contents | {render.CONFIG_FILE: contents[render.CONFIG_FILE].replace(render.DIGEST_PLACEHOLDER, digest)}


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of files whose configuration still contains the placeholder for it."""
    hasher = hashlib.sha256()
    for name, text in sorted(files.items()):
        hasher.update(f"{name}\0{len(text)}\0{text}".encode())
    return hasher.hexdigest()[:DIGEST_CHARS]


def parse_digest(config: str, name: str) -> str:
    """Return the digest in the configuration of the gateway `name`."""
    return config.partition(f"description '{name} ")[2].partition("'")[0]


def is_unaltered(files: Mapping[str, str], digest: str) -> bool:
    """Return True if the files have this digest."""
    config = files.get(render.CONFIG_FILE, "").replace(digest, render.DIGEST_PLACEHOLDER)
    return digest_of({**files, render.CONFIG_FILE: config}) == digest


def read_files(path: Path, names: Iterable[str] = FILE_NAMES) -> dict[str, str]:
    """Return the contents of these files in a folder, by name; empty if the folder does not exist.

    Missing files, links, pipes, files larger than MAX_FILE_BYTES and files that are not UTF-8 are left out.
    """
    contents: dict[str, str] = {}
    with contextlib.suppress(OSError):
        folder_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in sorted(names):
                with contextlib.suppress(OSError, ValueError):
                    contents[name] = _read_text(folder_fd, name)
        finally:
            os.close(folder_fd)
    return contents


def _read_text(folder_fd: int, name: str) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder_fd), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(name)
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(name)
    return content.decode()


def write_files(path: Path, files: Mapping[str, str]) -> None:
    """Write these files to a folder and remove all other files, except HAProxy's server states."""
    private.create_folder(path)
    for name, text in files.items():
        if not PATH_COMPONENT.fullmatch(name):
            raise Refused(f"a gateway has no file '{name}'.")
        write_atomically(path / name, text.encode())
    for entry in path.iterdir():
        mode = entry.lstat().st_mode
        if entry.name not in (*files, operations.STATES_FILE) and (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            entry.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder. If a container nested its folders too deeply for Python, only the files directly in it are removed."""
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


class ProofRecord(TypedDict, total=False):
    """The arguments of `gateway_proof`."""

    name: str
    port: int
    keyed: bool
    tls: bool
    models: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class VerifiedGateway(VerifiedContainer):
    """A verified state of a gateway; an empty one, which is false, if no gateway was verified."""

    #: digest of its files
    digest: str = ""
    models: Sequence[str] = ()
    proof: ProofRecord = field(default_factory=ProofRecord)
    #: time at which it was restored after a failed deploy; 0 if it was not
    restored_at: float = 0

    def __bool__(self) -> bool:
        return bool(self.digest and self.spec.get("name"))


def require_files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of a verified state. Raises Failed if they are missing or have been changed."""
    contents = state_files(context, digest)
    if not contents:
        raise Failed(
            "the files of that gateway are no longer on the host.", fix="`invoke gateway.deploy` writes new ones."
        )
    return contents


def load_last(context: Context) -> VerifiedGateway:
    """Return the last verified state; empty if there is none."""
    return load_last_in(state_of(context))


def load_last_in(gateway: StateFolder) -> VerifiedGateway:
    """Return the last verified state in a gateway's state folder; empty if there is none."""
    return VerifiedGateway.from_json(gateway.read("verified"))


def load_earlier(context: Context) -> list[VerifiedGateway]:
    """Return the verified states before the last one, newest first."""
    states = (state_of(context).read("verified_before") or {}).get("states", [])
    return list(filter(None, map(VerifiedGateway.from_json, select_valid(VERIFIED_STATE_SHAPE, states))))


def state_files(context: Context, digest: str) -> dict[str, str]:
    """Return the files of the verified state with this digest; empty if they are missing or have been changed."""
    contents = read_files(_state_folder(context, digest))
    return contents if is_unaltered(contents, digest) else {}


def save_verified(context: Context, new_state: VerifiedGateway, *, rolled_back: bool = False) -> None:
    """Record the last verified state, with a copy of the current files.

    Args:
        new_state: the state, without `run` and `since`.
        rolled_back: whether to drop the states that were verified after this one.
    """
    digest, previous = new_state.digest, load_last(context)
    states = ([previous] if previous else []) + load_earlier(context)
    match_index = next((n for n, state in enumerate(states) if _is_same(state, new_state)), None)
    script = states[match_index].script if match_index is not None else ""
    older_states = (
        states[match_index + 1 :]
        if rolled_back and match_index is not None
        else [state for state in states if not _is_same(state, new_state)]
    )
    older_states = older_states[:MAX_EARLIER_STATES]
    gateway = state_of(context)
    write_files(_state_folder(context, digest), read_files(current_folders(gateway).files))
    gateway.write("verified_before", {"states": [state.to_json() for state in older_states]})
    gateway.write("verified", replace(new_state, script=script, run=context.run_id, since=time.time()).to_json())
    needed_digests = {digest, *(state.digest for state in older_states)}
    for path in folder(context, VERIFIED_FOLDER).iterdir():
        if path.name not in needed_digests:
            remove_folder(path)


def record_restore(context: Context, state: VerifiedGateway) -> None:
    """Record that the last verified state was loaded again after a failure."""
    state_of(context).write("verified", replace(state, restored_at=time.time()).to_json())


def _state_folder(context: Context, digest: str) -> Path:
    return folder(context, VERIFIED_FOLDER) / digest


def _is_same(first: VerifiedGateway, second: VerifiedGateway) -> bool:
    """Return True if two states have the same files and container settings."""
    return first.digest == second.digest and _comparable_spec(first) == _comparable_spec(second)


def _comparable_spec(state: VerifiedGateway) -> str:
    """Return the spec as JSON, because a spec that was read from a file has lists instead of tuples."""
    return json.dumps({key: value for key, value in state.spec.items() if key != "image_ids"}, sort_keys=True)
