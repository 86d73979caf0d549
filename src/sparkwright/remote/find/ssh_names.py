"""The hosts in the user's ssh files. Only names are read: their settings come from `ssh -G`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sparkwright.trust.names import below_home

#: the limit of Include in ssh_config(5)
MOST_DEEP = 16
MOST_FILES, MOST_INCLUDES, MOST_BYTES = 100, 50, 1_000_000
#: a name, an IP address
NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.:-]{0,252}[A-Za-z0-9_])?")
_KEYWORD = re.compile(r"(host|include)[\s=](.*)", re.I | re.S)


def of_config(path: Path) -> list[str]:
    """Return the names of `Host` lines that are not patterns, with those of included files, each once; none without the file."""
    return list(dict.fromkeys(_names(path, path.parent, 0)))


def of_known_hosts(path: Path) -> list[str]:
    """Return the names of a known_hosts file: no hashed ones, no patterns, none that is revoked or has a port of its own."""
    found: dict[str, None] = {}
    for line in _lines(path):
        first = line.split(maxsplit=1)[0] if line.split() else ""
        if not first.startswith(("#", "@", "|")):
            found |= {name: None for name in first.split(",") if NAME.fullmatch(name)}
    return list(found)


def _names(path: Path, folder: Path, deep: int) -> Iterator[str]:
    for line in _lines(path):
        parts = _KEYWORD.fullmatch(line.strip())
        if parts is None:
            continue
        try:
            words = shlex.split(parts[2].strip().removeprefix("="), comments=True)
        except ValueError:
            continue
        if parts[1].lower() == "host":
            yield from (word for word in words if NAME.fullmatch(word))
        elif deep < MOST_DEEP:
            for word in words[:MOST_INCLUDES]:
                yield from _included(word, folder, deep + 1)


def _included(pattern: str, folder: Path, deep: int) -> Iterator[str]:
    """Yield the names of included files: a pattern without a folder is relative to the first file's, as in ssh."""
    wanted = folder / below_home(pattern)
    top = Path(wanted.anchor)
    try:
        files = sorted(islice(top.glob(str(wanted.relative_to(top))), MOST_FILES))
    except (ValueError, NotImplementedError, OSError):
        return
    for file in files:
        yield from _names(file, folder, deep)


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []
