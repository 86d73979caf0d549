"""Reads secrets on the laptop, from the sources that the user's files name. Error messages never contain a secret."""

from __future__ import annotations

import os
import subprocess

from sparkwright import visible
from sparkwright.engines import http as server_keys
from sparkwright.errors import Refused
from sparkwright.project.inventory.host import Host, Source
from sparkwright.secret import Secret
from sparkwright.trust.names import expand_home
from sparkwright.trust.redact import MIN_SECRET_CHARS
from sparkwright.trust.secret_names import is_secret

#: where a secret can be defined, for messages
DEFAULT_LOCATION = "hosts/groups.yml, `secrets`"
COMMAND_TIMEOUT_S = 60
MAX_SECRET_BYTES = 64 * 2**10


def read_secrets(host: Host) -> dict[str, Secret]:
    """Read a host's secrets, except those whose environment variable or file does not exist.

    Raises Refused for a secret that is too short, and Failed for one that cannot be read.
    """
    secrets = {name: read_secret(name, source) for name, source in host.secret_sources.items()}
    for name, secret in secrets.items():
        _refuse_short(name, secret, host.secret_sources[name])
    return {name: secret for name, secret in secrets.items() if secret is not None}


def read_server_key(source: Source, where: str, name: str = "server_key") -> Secret:
    """Read the API key of a server or gateway. name: the key's name in the file.

    Raises Refused if the source is empty or does not exist, or the key is invalid.
    """
    secret = read_secret(name, source)
    if not secret:
        raise Refused(
            f"`{name}`: {describe_source(source)} provides no key.",
            where=where,
            fix=f"Set it. {server_keys.GENERATE_KEY_HINT}",
        )
    if not server_keys.is_valid_key(secret.reveal()):
        raise Refused(
            f"`{name}`: a key must be {server_keys.VALID_KEY_RULE}.", where=where, fix=server_keys.GENERATE_KEY_HINT
        )
    return secret


def read_secret(name: str, source: Source) -> Secret | None:
    """Read a secret; None if its environment variable or file does not exist. Raises Refused if it cannot be read."""
    if source.env is not None:
        value = os.environ.get(source.env)
        return Secret(value) if value else None
    if source.file is not None:
        return _read_file(name, source.file)
    return _run_command(name, list(source.command or ()))


def _refuse_short(name: str, secret: Secret | None, source: Source) -> None:
    """Raise Refused for a secret that is too short: masking it would garble ordinary words that contain it."""
    if secret and len(secret.reveal()) < MIN_SECRET_CHARS:
        message = f"the secret {name} is shorter than {MIN_SECRET_CHARS} characters."
        raise Refused(
            message, where=describe_source(source), fix="Masking it would garble ordinary words; use a longer one."
        )


def describe_source(source: Source) -> str:
    """Return a phrase that names the source, for messages."""
    if source.env is not None:  # hidden if it looks like the secret itself, entered by mistake
        return f"the environment variable {'of that name' if is_secret('', source.env) else source.env}"
    return f"the file {source.file}" if source.file is not None else "the command"


def describe_location(name: str, host: Host) -> str:
    """Return where a host's secret is defined, and what its source lacks; DEFAULT_LOCATION if it is not defined."""
    source = host.secret_sources.get(name)
    if source is None:
        return DEFAULT_LOCATION
    where = host.set_at.get(f"secrets.{name}", host.where)
    if source.env is not None and not os.environ.get(source.env):
        return f"{where}: {describe_source(source)} is not set"
    if source.file is not None and not expand_home(source.file).exists():
        return f"{where}: {describe_source(source)} does not exist"
    return where


def _read_file(name: str, path: str) -> Secret | None:
    where = visible.display_name(path)
    try:
        with expand_home(path).open("rb") as file:  # a pipe may never end
            raw = file.read(MAX_SECRET_BYTES + 1)
        if len(raw) > MAX_SECRET_BYTES:
            raise Refused(f"the file of the secret {name} is larger than {MAX_SECRET_BYTES >> 10} KiB.", where=where)
        return Secret(raw.decode().replace("\r\n", "\n").rstrip("\n"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise Refused(f"cannot read the file of the secret {name}: not a UTF-8 text file.", where=where) from None
    except (OSError, ValueError) as error:  # ValueError: the path is invalid, such as one with a NUL
        reason = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise Refused(f"cannot read the file of the secret {name}: {reason}.", where=where) from None


def _run_command(name: str, command: list[str]) -> Secret:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise Refused(f"cannot run the command for the secret {name}: {reason}.") from None
    if result.returncode:
        output = result.stderr.strip()[-200:] or "it printed no error message."
        raise Refused(f"the command for the secret {name} exited with {result.returncode}: {output}")
    return Secret(result.stdout.rstrip("\n"))
