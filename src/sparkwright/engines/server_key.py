"""The API key of a server: its valid characters, and ways to pass it to an engine that nobody else can read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

#: valid in an Authorization header and as an argument's value; the minimum length is ours: short keys can be guessed
_KEY = re.compile(r"[A-Za-z0-9._~+/=][A-Za-z0-9._~+/=-]{15,511}")
VALID = "16 to 512 letters, digits or . _ ~ + / = -, the first not a dash"
#: fix for a server that needs an unknown key
SET = "Set `server_key` in the recipe and deploy; the checks then use that key."
MAKE = "`openssl rand -hex 24` makes one."


def valid(key: str) -> bool:
    """Return True if a text can be a server's key, see VALID."""
    return _KEY.fullmatch(key) is not None


def line_of(key: str) -> str:
    """Return a file of keys, one per line, with this key."""
    return f"{key}\n"


def key_of_lines(written: str) -> str:
    """Return the first key in a file of keys; empty if it holds none."""
    lines = (line.strip() for line in written.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The way in which one engine reads its key from a file that only its container sees."""

    #: flag that would hold the key itself, readable by everybody
    flag: str
    #: environment variable that would hold the key itself, readable by everybody
    variable: str
    #: flag that names the file; if empty, a shell in the container sets `variable` from the file before the engine starts
    option: str
    #: path of the file in the container
    mount: str
    #: why `option` can't be used for anything else, as the end of a sentence
    alone: str
    #: returns the file's content for a key
    text: Callable[[str], str] = line_of
    #: returns the key in such a file, empty if it holds none
    key_of: Callable[[str], str] = key_of_lines

    @property
    def words(self) -> tuple[str, ...]:
        """The words of a command that name the file."""
        return (f"--{self.option}", self.mount) if self.option else ()

    def program(self, entrypoint: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Return the entrypoint with which the engine gets its key."""
        if self.option or entrypoint is None:
            return entrypoint
        return "sh", "-c", f'export {self.variable}="$(cat {self.mount})"; exec "$@"', "sh", *entrypoint

    @property
    def suffix(self) -> str:
        """The suffix of the file's name."""
        return PurePath(self.mount).suffix


OPEN_SENTENCE = "anyone on the network can use this server"
OPEN_WAY_OF_HOST = "set `server_key` in the recipe, or the engine's flag `host: 127.0.0.1`; or remove `network: host`"
OPEN_WAY = "set `server_key` or `publish: loopback` in the recipe"
