"""Differences between command lines written elsewhere and recipes, as data of each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def as_they_are(words: Sequence[str]) -> list[str]:
    """Return the words unchanged, for an engine without short options that its command reader would miss."""
    return list(words)


@dataclass(frozen=True)
class Imports:
    """Data to convert other people's command lines of one engine. Flags are under their own names, without dashes."""

    #: image of the release that the engine's tables describe
    image: str
    #: port on which the engine listens in that image
    port_inside: int
    #: names of its programs and images
    names: tuple[str, ...]
    #: words that start the engine where an image does not
    program: tuple[str, ...]
    #: the flag with the address
    host: str
    #: flags with an API key
    key: tuple[str, ...] = ()
    #: the flag for tensor parallelism over GPUs; "" for none
    tensor: str = ""
    #: the flag for pipeline parallelism over GPUs; "" for none
    pipeline: str = ""
    #: flags that only say how the hosts of a group find each other
    backends: tuple[str, ...] = ()
    #: flags that start more than one copy
    replicas: tuple[str, ...] = ()
    #: the flag that names a repository of the hub, as OWNER/NAME[:QUANTISATION]; "" if the model argument itself does
    repository: str = ""
    #: the flag that names a file in that repository
    repository_file: str = ""
    #: flags with the model's revision
    revisions: tuple[str, ...] = ()
    #: flags that name a file on the recipe author's machine
    files: tuple[str, ...] = ()
    #: flags that name another model, each with the key of its JSON that does; "" if the flag takes the name itself
    further_models: Mapping[str, str] = field(default_factory=dict)
    #: flags about downloading, each with its replacement in sparkwright
    downloads: tuple[str, ...] = ()
    #: flags that carry a token of the hub
    tokens: tuple[str, ...] = ()
    #: replaces the short options of a command with their long names
    spelled_out: Callable[[Sequence[str]], list[str]] = as_they_are
    #: its parser accepts long options with one dash
    one_dash: bool = False
    #: the flag with the model names for clients; "" if the server answers to any name
    served_name: str = ""
