"""The files with the servers' keys. `host.containers.server_key` decides which are needed.

~/.local/state/sparkwright/server_keys/    0700
    salt                                   random, for the fingerprints; created once, never leaves the host
    NAME-FINGERPRINT.yaml                  0600, in vLLM's format; mounted read-only. Other engines have other suffixes
    NAME.yaml                              a link to the key of the newest container, for the docker run script
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
SALT = "salt"
SALT_BYTES = 32
#: hexadecimal digits of a fingerprint: two keys of one host never share one
FINGERPRINT_DIGITS = 16


def has_keys(state: StateFolder) -> bool:
    """Return True if this host has ever kept a key."""
    return (state.path / FOLDER).is_dir()


def list_keys(state: StateFolder) -> list[str]:
    """Return every key that is kept, for masking."""
    return [key for path in _iter_files(state, "*") if (key := read_key(path))]


def key_path(state: StateFolder, name: str, fingerprint: str, key_format: ServerKey | None = None) -> Path:
    """Return the path of the key with this fingerprint.

    Args:
        key_format: the engine's format of a key file; None: the usual engine's.
    """
    return state.path / FOLDER / f"{name}-{fingerprint}{(key_format or _key_formats()['']).suffix}"


def read_key(path: Path) -> str:
    """Return the key in a file; empty if there is none."""
    try:
        key_format = _key_formats().get(path.suffix)
        return key_format.key_of(path.read_text()) if key_format else ""
    except (OSError, UnicodeDecodeError):
        return ""


def fingerprint(state: StateFolder, key: str) -> str:
    """Return the name of a key on this host, which reveals nothing of it; empty without a salt: then no key is kept yet."""
    try:
        salt = (state.path / FOLDER / SALT).read_bytes()
    except FileNotFoundError:
        return ""
    return hmac.new(salt, key.encode(), hashlib.sha256).hexdigest()[:FINGERPRINT_DIGITS]


def save_key(
    state: StateFolder, name: str, key: str, *, world_readable: bool, key_format: ServerKey | None = None
) -> Path:
    """Write a key's file and return its path.

    Args:
        world_readable: readable for any user of the container; the folder keeps other users of the host out.
    """
    folder = state.path / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / SALT).exists():
        write_atomically(folder / SALT, os.urandom(SALT_BYTES), mode=0o600)
    key_format = key_format or _key_formats()[""]
    path = key_path(state, name, fingerprint(state, key), key_format)
    mode = 0o644 if world_readable else 0o600
    if read_key(path) == key:  # a container may have this very file mounted
        path.chmod(mode)
    else:
        write_atomically(path, key_format.text(key).encode(), mode=mode)
    return path


def update_link(path: Path, name: str) -> None:
    """Point the link NAME, with the same suffix, to this file."""
    temporary = path.with_name(f"{name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(path.with_name(f"{name}{path.suffix}"))


def remove_unneeded(state: StateFolder, name: str, needed: Collection[str]) -> None:
    """Remove the keys of a server whose fingerprints are not needed."""
    for path in _iter_files(state, name):
        if path.stem.removeprefix(f"{name}-") not in needed:
            path.unlink(missing_ok=True)


def _iter_files(state: StateFolder, name: str) -> Iterator[Path]:
    paths = (state.path / FOLDER).glob(f"{name}-{'[0-9a-f]' * FINGERPRINT_DIGITS}.*")
    return (path for path in paths if path.suffix in _key_formats())


@functools.lru_cache(maxsize=1)
def _key_formats() -> dict[str, ServerKey]:
    """Return the engines' formats of a key file, by file suffix; "" for the usual engine."""
    keys = {name: key for name in engine.TITLES if (key := engine.get_engine(name).key) is not None}
    return {key.suffix: key for key in keys.values()} | {"": keys[engine.DEFAULT_ENGINE]}


# heal-token.json: the token with which the health checks of a cluster's members authenticate to restart it without a laptop.
#
# `health.install` generates it on the laptop, the same for all members, and anew each time; it is sent as a secret, and stored
# in this file only, which this user alone can read. The checks never send it: keys are derived from it, one per purpose.

HEAL_TOKEN_RECORD = "heal-token"
#: the name of the secret: 32 random bytes, in hexadecimal digits
HEAL_TOKEN_SECRET = "HEAL_TOKEN"
HEAL_TOKEN_PATTERN = re.compile(r"[0-9a-f]{64}")


def save_heal_token(state: StateFolder, token: Secret) -> None:
    """Store the token, replacing the previous one."""
    state.write(HEAL_TOKEN_RECORD, {"token": token.reveal()})


def load_heal_token(state: StateFolder) -> Secret:
    """Return the stored token; empty if there is none."""
    token = (state.read(HEAL_TOKEN_RECORD) or {}).get("token", "")
    return Secret(token if HEAL_TOKEN_PATTERN.fullmatch(token) else "")
