"""The servers' API keys, in files that their containers mount. `host.containers.server_key` decides which are needed.

~/.local/state/sparkwright/server_keys/    0700
    salt                                   random, for the fingerprints; created once, never leaves the host
    NAME-FINGERPRINT.yaml                  in vLLM's format; other engines have other suffixes
    NAME.yaml                              link to the key of the newest container, for the docker run script
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from sparkwright.engines import engine
from sparkwright.engines.http import ServerKey
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.secret import Secret

FOLDER = "server_keys"
SALT_FILE = "salt"
SALT_BYTES = 32
FINGERPRINT_DIGITS = 16

HEAL_TOKEN_RECORD = "heal-token"
#: name of the secret in a request
HEAL_TOKEN_SECRET = "HEAL_TOKEN"
#: 32 random bytes
HEAL_TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")


def has_keys(state: StateFolder) -> bool:
    """Return True if a key has ever been stored on this host."""
    return (state.path / FOLDER).is_dir()


def list_keys(state: StateFolder) -> list[str]:
    """Return all stored keys, for masking."""
    return [key for path in _iter_files(state, "*") if (key := read_key(path))]


def key_path(state: StateFolder, name: str, fingerprint: str, key_format: ServerKey | None = None) -> Path:
    """Return the path of the file for the key with this fingerprint.

    Args:
        key_format: the format of the engine's key file; None for the default engine.
    """
    return state.path / FOLDER / f"{name}-{fingerprint}{(key_format or _key_formats()['']).suffix}"


def read_key(path: Path) -> str:
    """Return the key in a file; empty if the file is missing or invalid."""
    try:
        key_format = _key_formats().get(path.suffix)
        return key_format.parse_file(path.read_text()) if key_format else ""
    except (OSError, UnicodeDecodeError):
        return ""


def fingerprint(state: StateFolder, key: str) -> str:
    """Return a salted hash that identifies a key on this host; empty without a salt, i.e. before a key has been stored."""
    try:
        salt = (state.path / FOLDER / SALT_FILE).read_bytes()
    except FileNotFoundError:
        return ""
    return hmac.new(salt, key.encode(), hashlib.sha256).hexdigest()[:FINGERPRINT_DIGITS]


def save_key(
    state: StateFolder, name: str, key: str, *, world_readable: bool, key_format: ServerKey | None = None
) -> Path:
    """Write a key to its file and return the path.

    Args:
        world_readable: let every user in the container read the file; the folder's mode excludes the host's other users.
    """
    folder = state.path / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / SALT_FILE).exists():
        write_atomically(folder / SALT_FILE, os.urandom(SALT_BYTES), mode=0o600)
    key_format = key_format or _key_formats()[""]
    path = key_path(state, name, fingerprint(state, key), key_format)
    mode = 0o644 if world_readable else 0o600
    if read_key(path) == key:  # keep the inode: a container may have it mounted
        path.chmod(mode)
    else:
        write_atomically(path, key_format.render_file(key).encode(), mode=mode)
    return path


def update_link(path: Path, name: str) -> None:
    """Point the link NAME.SUFFIX in the folder of a key file to that file, which has the same suffix."""
    temporary_link = path.with_name(f"{name}.new")
    temporary_link.unlink(missing_ok=True)
    temporary_link.symlink_to(path.name)
    temporary_link.replace(path.with_name(f"{name}{path.suffix}"))


def remove_unneeded(state: StateFolder, name: str, needed_fingerprints: Collection[str]) -> None:
    """Remove a server's keys, except those with the fingerprints in `needed_fingerprints`."""
    for path in _iter_files(state, name):
        if path.stem.removeprefix(f"{name}-") not in needed_fingerprints:
            path.unlink(missing_ok=True)


def _iter_files(state: StateFolder, name: str) -> Iterator[Path]:
    paths = (state.path / FOLDER).glob(f"{name}-{'[0-9a-f]' * FINGERPRINT_DIGITS}.*")
    return (path for path in paths if path.suffix in _key_formats())


@functools.lru_cache(maxsize=1)
def _key_formats() -> dict[str, ServerKey]:
    """Return the engines' formats of key files, by file suffix; the default engine's also under ""."""
    formats_by_engine = {name: key for name in engine.TITLES if (key := engine.get_engine(name).key) is not None}
    return {key.suffix: key for key in formats_by_engine.values()} | {"": formats_by_engine[engine.DEFAULT_ENGINE]}


# heal-token.json: the secret with which the health checks of a cluster's members authenticate to each other before a restart.
#
# Each `health.install` generates a new one on the laptop, for all members of a cluster. Only this user can read the file. The
# checks do not send the token itself, but values derived from it.


def save_heal_token(state: StateFolder, token: Secret) -> None:
    """Store the token, replacing the previous one."""
    state.write(HEAL_TOKEN_RECORD, {"token": token.reveal()})


def load_heal_token(state: StateFolder) -> Secret:
    """Return the stored token; empty if there is none."""
    token = (state.read(HEAL_TOKEN_RECORD) or {}).get("token", "")
    return Secret(token if HEAL_TOKEN_PATTERN.fullmatch(token) else "")
