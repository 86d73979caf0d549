"""A secret, read on the laptop from the source that a user's file names. Errors never hold the secret."""

from __future__ import annotations

import os
import subprocess

from sparkwright import visible
from sparkwright.engines import http as server_keys
from sparkwright.errors import Failed, Refused
from sparkwright.project.inventory.host import Host, Source
from sparkwright.secret import Secret
from sparkwright.trust.names import below_home
from sparkwright.trust.redact import SHORTEST
from sparkwright.trust.secret_names import is_secret

COMMAND_S = 60
LARGEST_BYTES = 64 * 2**10


def of(host: Host) -> dict[str, Secret]:
    """Read a host's secrets. One whose environment variable or file does not exist is left out.

    Raises Refused for one that is too short.
    """
    found = {name: read(name, source) for name, source in host.secret_sources.items()}
    for name, secret in found.items():
        refuse_short(name, secret, str(host.where))
    return {name: secret for name, secret in found.items() if secret is not None}


def server_key(source: Source, where: str, name: str = "server_key") -> Secret:
    """Read the key of a recipe's server, or of a gateway. name: the key's name in the file.

    Raises Refused with file and line if there is none, or it is not valid.
    """
    found = read(name, source)
    if not found:
        raise Refused(f"`{name}`: {named(source)} holds no key.", where=where, fix=f"Set it; {server_keys.MAKE}")
    if not server_keys.valid(found.reveal()):
        raise Refused(f"`{name}`: a key must be {server_keys.VALID}.", where=where, fix=server_keys.MAKE)
    return found


def read(name: str, source: Source) -> Secret | None:
    """Read a secret. Returns None if its environment variable is not set, or its file does not exist. Raises Failed with its
    name."""
    if source.env is not None:
        value = os.environ.get(source.env)
        return Secret(value) if value else None
    if source.file is not None:
        return _file(name, source.file)
    return _command(name, list(source.command or ()))


def refuse_short(name: str, secret: Secret | None, where: str) -> None:
    """Raise Refused for a secret that is too short to be masked: ordinary words would contain it."""
    if secret and len(secret.reveal()) < SHORTEST:
        message = f"the secret {name} is shorter than {SHORTEST} characters."
        raise Refused(message, where=where, fix="Masking it would garble ordinary words; use a longer one.")


def named(source: Source) -> str:
    """Return the source in words, for a message."""
    if source.env is not None:  # users may have put the secret itself there
        return f"the environment variable {'of that name' if is_secret('', source.env) else source.env}"
    return f"the file {source.file}" if source.file is not None else "the command"


def _file(name: str, written: str) -> Secret | None:
    where = visible.name(written)
    try:
        with below_home(written).open("rb") as file:  # it may be a pipe, or have no end
            raw = file.read(LARGEST_BYTES + 1)
        if len(raw) > LARGEST_BYTES:
            raise Failed(f"the file of the secret {name} is larger than {LARGEST_BYTES >> 10} KiB.", where=where)
        return Secret(raw.decode().replace("\r\n", "\n").rstrip("\n"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Failed(f"cannot read the file of the secret {name}: not a UTF-8 text file.", where=where) from None
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        message = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise Failed(f"cannot read the file of the secret {name}: {message}.", where=where) from None


def _command(name: str, words: list[str]) -> Secret:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        answer = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise Failed(f"cannot run the command for the secret {name}: {answer}.") from None
    if done.returncode:
        raise Failed(f"the command for the secret {name} exited with {done.returncode}: {done.stderr.strip()[-200:]}")
    return Secret(done.stdout.rstrip("\n"))
