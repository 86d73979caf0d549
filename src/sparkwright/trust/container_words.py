"""What a recipe writes in docker's words: which spellings mean something, checked before they reach an engine."""

from __future__ import annotations

import re

from sparkwright.trust.visible import one_line

#: as docker reads a size (go-units RAMInBytes): 64gb, 512m, 1.5GiB, 1024
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmgtp]?)i?b?", re.I)
_PORT = re.compile(
    r"(?<![0-9.])(?:(?:[0-9.]{1,15}|\[[0-9A-Fa-f:.]{1,45}\]):)?([0-9]{1,5}):([0-9]{1,5})(?:/(?:tcp|udp|sctp))?"
)
_GPUS = re.compile(r"(?:all|[1-9][0-9]{0,2}|device=[\w.:-]+(?:,[\w.:-]+)*)?", re.ASCII)
_ULIMIT = re.compile(r"(?:-1|[0-9]{1,19})(?::(?:-1|[0-9]{1,19}))?")
LARGEST_PORT = 65535


def size(text: str) -> str:
    """Why this is not a size; empty when it is, or when nothing is asked for."""
    return "" if not text or SIZE.fullmatch(text) else f"{_quoted(text)} is not a size: write 64gb, 512m or 1024."


def port(text: str) -> str:
    """Why this is not a published port; empty when it is."""
    match = _PORT.fullmatch(text)
    if match and all(0 < int(number) <= LARGEST_PORT for number in match.groups()):
        return ""
    return f"{_quoted(text)} is not a published port: write HOST:CONTAINER or ADDRESS:HOST:CONTAINER, as 127.0.0.1:8000:8000."


def gpus(text: str) -> str:
    """Why this names no GPUs; empty when it does."""
    return (
        ""
        if _GPUS.fullmatch(text)
        else f'{_quoted(text)} names no GPUs: write "all", a number, "device=0,1", or "" for none.'
    )


def ulimit(text: str) -> str:
    """Why this is not a limit; empty when it is."""
    return (
        ""
        if _ULIMIT.fullmatch(text)
        else f"{_quoted(text)} is not a limit: write NUMBER or SOFT:HARD; -1 is unlimited."
    )


def variable(name: str, value: str) -> str:
    """Why no process can have this environment variable; empty when one can."""
    if name and "=" not in name and "\0" not in name + value:
        return ""
    return f"{_quoted(name)} can't be an environment variable: a name is not empty and has no =, and neither part has a NUL."


def _quoted(text: str) -> str:
    return f"'{one_line(text, at_most=40)}'"
