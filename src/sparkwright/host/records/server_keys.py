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
DIGITS = 16


def any_kept(state: StateFolder) -> bool:
    """Return True if this host has ever kept a key."""
    return (state.path / FOLDER).is_dir()


def kept(state: StateFolder) -> list[str]:
    """Return every key that is kept, for masking."""
    return [key for path in _files(state, "*") if (key := read(path))]


def path_of(state: StateFolder, name: str, fingerprint: str, form: ServerKey | None = None) -> Path:
    """Return the path of the key with this fingerprint.

    Args:
        form: the engine's format of a key file; None: the usual engine's.
    """
    return state.path / FOLDER / f"{name}-{fingerprint}{(form or _forms()['']).suffix}"


def read(path: Path) -> str:
    """Return the key in a file; empty if there is none."""
    try:
        form = _forms().get(path.suffix)
        return form.key_of(path.read_text()) if form else ""
    except (OSError, UnicodeDecodeError):
        return ""


def fingerprint(state: StateFolder, key: str) -> str:
    """Return the name of a key on this host, which reveals nothing of it; empty without a salt: then no key is kept yet."""
    try:
        salt = (state.path / FOLDER / SALT).read_bytes()
    except FileNotFoundError:
        return ""
    return hmac.new(salt, key.encode(), hashlib.sha256).hexdigest()[:DIGITS]


def keep(state: StateFolder, name: str, key: str, *, everyone: bool, form: ServerKey | None = None) -> Path:
    """Write a key's file and return its path.

    Args:
        everyone: readable for any user of the container; the folder keeps other users of the host out.
    """
    folder = state.path / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    if not (folder / SALT).exists():
        write_atomically(folder / SALT, os.urandom(SALT_BYTES), mode=0o600)
    form = form or _forms()[""]
    path = path_of(state, name, fingerprint(state, key), form)
    mode = 0o644 if everyone else 0o600
    if read(path) == key:  # a container may have this very file mounted
        path.chmod(mode)
    else:
        write_atomically(path, form.text(key).encode(), mode=mode)
    return path


def link(path: Path, name: str) -> None:
    """Point the link NAME, with the same suffix, to this file."""
    temporary = path.with_name(f"{name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(path.with_name(f"{name}{path.suffix}"))


def drop(state: StateFolder, name: str, needed: Collection[str]) -> None:
    """Remove the keys of a server whose fingerprints are not needed."""
    for path in _files(state, name):
        if path.stem.removeprefix(f"{name}-") not in needed:
            path.unlink(missing_ok=True)


def _files(state: StateFolder, name: str) -> Iterator[Path]:
    found = (state.path / FOLDER).glob(f"{name}-{'[0-9a-f]' * DIGITS}.*")
    return (path for path in found if path.suffix in _forms())


@functools.lru_cache(maxsize=1)
def _forms() -> dict[str, ServerKey]:
    """Return the engines' formats of a key file, by file suffix; "" for the usual engine."""
    keys = {name: key for name in engine.TITLES if (key := engine.of(name).key) is not None}
    return {key.suffix: key for key in keys.values()} | {"": keys[engine.USUAL]}


# heal-token.json: the token with which the health checks of a cluster's members authenticate to restart it without a laptop.
#
# `health.install` generates it on the laptop, the same for all members, and anew each time; it is sent as a secret, and stored
# in this file only, which this user alone can read. The checks never send it: keys are derived from it, one per purpose.

HEAL_TOKENS_NAME = "heal-token"
#: the name of the secret: 32 random bytes, in hexadecimal digits
SECRET = "HEAL_TOKEN"
HEAL_TOKENS_DIGITS = re.compile(r"[0-9a-f]{64}")


def keep_heal_tokens(state: StateFolder, token: Secret) -> None:
    """Store the token, replacing the previous one."""
    state.write(HEAL_TOKENS_NAME, {"token": token.reveal()})


def heal_tokens_kept(state: StateFolder) -> Secret:
    """Return the stored token; empty if there is none."""
    found = (state.read(HEAL_TOKENS_NAME) or {}).get("token", "")
    return Secret(found if HEAL_TOKENS_DIGITS.fullmatch(found) else "")
