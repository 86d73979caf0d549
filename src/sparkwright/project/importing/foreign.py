"""A recipe of others in one form, whatever it was written in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents.checked import kind_of
from sparkwright.visible import one_line

MOST_WORDS, MOST_CHARS = 2_000, 64_000
#: YAML's key for "what that mapping has, too"
MERGED = "<<"


@dataclass
class Foreign:
    """What a format's reader found.

    kind: the format, as people call it. name: its own, a file's or a container's. engine: "" where it does not say.
    words: the command that serves. image: with tag and digest as written; "" for none. model: as OWNER/NAME[:QUANTISATION]; ""
    where only the command says it. options: of `docker run`, by their names in a recipe. ports, volumes: as docker writes them.
    hosts: how many it is for; 0 where it does not say. task: "" for text. folder: beside it lie its mods. adopted: it runs as it
    is, and is to be found unchanged; starts: what its image starts by itself.
    """

    kind: str
    name: str
    description: str = ""
    engine: str = ""
    words: list[str] = field(default_factory=list)
    image: str = ""
    model: str = ""
    revision: str = ""
    env: dict[str, str] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    entrypoint: list[str] | None = None
    network: str = ""
    hosts: int = 0
    task: str = ""
    folder: Path | None = None
    adopted: bool = False
    starts: list[str] = field(default_factory=list)


def mapping(value: Any, what: str) -> dict[str, Any]:
    """A part of a stranger's file that must be a mapping, with what YAML's `<<` brings into it; an absent one is empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refused(f"`{one_line(what, at_most=80)}` must be a mapping, got {kind_of(value)}.")
    found = {str(key): one for key, one in value.items()}
    brought = found.pop(MERGED, ())
    for more in brought if isinstance(brought, list | tuple) else [brought]:
        found = {**mapping(more, f"{what}.{MERGED}"), **found}
    return found


def texts(value: Any, what: str) -> list[str]:
    """A part that must be a list of words, each a text or a number; an absent one is empty."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MOST_WORDS:
        raise Refused(f"`{one_line(what, at_most=80)}` must be a list of words, got {kind_of(value)}.")
    return [text(one, what) for one in value]


def text(value: Any, what: str) -> str:
    """A part that must be a text or a number; an absent one is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float) or len(str(value)) > MOST_CHARS:
        raise Refused(f"`{one_line(what, at_most=80)}` must be a text, got {kind_of(value)}.")
    return str(value)
