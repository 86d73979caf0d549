"""Where a gateway's files stand, and how they come to be what is wanted.

~/.local/state/sparkwright/gateway/config       what HAProxy reads, mounted into its container, with its admin socket
                                  /candidate    what is checked before anything is touched
                                  /good/DIGEST  the files of states that were verified
All of it is 0700 and 0600: server keys are in it, and the hash of the clients' key.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.gateway import operations, render
from sparkwright.host.module import Context
from sparkwright.host.state import StateFolder, write_atomically
from sparkwright.trust import private
from sparkwright.trust.names import STEP

FOLDER, CONFIG, CANDIDATE, GOOD = "gateway", "config", "candidate", "good"
DIGEST_CHARS = 16
#: what stands beside the files of a configuration
OWN = (operations.STATES,)


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
    context: Context,
) -> dict[str, str]:
    """All files by name. client_key, certificate: names of secrets, empty for none. server_keys: of secrets by backend.

    operators: the SHA-256 of the hosts' keys; that of a host which could not be asked is empty, and then stays what it was.

    The configuration names the digest of them all, so that a running HAProxy tells which it reads. Raises Refused where a
    secret did not come with this run.
    """
    found = dict(files)
    if client_key:
        hashed = hashlib.sha256(_secret(client_key, context).encode()).hexdigest()
        found[render.CLIENT_KEYS] = f"{hashed}\n"
    if server_keys:
        rows = sorted(server_keys.items())
        found[render.SERVER_KEYS] = "".join(f"{backend} {_secret(name, context)}\n" for backend, name in rows)
    if certificate:
        found[render.CERTIFICATE] = _secret(certificate, context)
    kept = operations.hashes_in(read(state(context).path / CONFIG).get(operations.OPERATORS, ""), operators)
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


def read(path: Path) -> dict[str, str]:
    """The files of one of these folders, without sockets; none where it is not there."""
    if not path.is_dir():
        return {}
    return {one.name: one.read_text() for one in sorted(path.iterdir()) if one.is_file() and one.name not in OWN}


def write(path: Path, files: Mapping[str, str]) -> None:
    """Make a folder hold these files and no others; a socket stays."""
    private.folder(path)
    for name, text in files.items():
        if not STEP.fullmatch(name):
            raise Refused(f"a gateway has no file '{name}'.")
        write_atomically(path / name, text.encode())
    for one in path.iterdir():
        if one.is_file() and one.name not in (*files, *OWN):
            one.unlink(missing_ok=True)


def drop(path: Path) -> None:
    """Remove one of these folders."""
    shutil.rmtree(path, ignore_errors=True)


def _secret(name: str, context: Context) -> str:
    found = context.secrets.get(name)
    if not found:
        raise Refused(f"{name} was not sent with this run.", fix="Use `gateway.deploy`.")
    return found.reveal()
