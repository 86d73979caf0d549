"""What a command line that was written elsewhere says in another way than a recipe does, as data of each engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def as_they_are(words: Sequence[str]) -> list[str]:
    """The words of an engine that has no short spelling which its own reader passes over."""
    return list(words)


@dataclass(frozen=True)
class Imports:
    """One engine's. Flags by their own names, without dashes.

    image: the image of the release that the engine's tables are of. port_inside: on which it listens there. names: what its programs
    and images are called. program: the words that start it where an image does not. host: the flag with the address. key: the flags with an API key. tensor, pipeline: the flags that split a
    model over GPUs; "" for none. backends: flags that only say how the hosts of a group find each other. replicas: flags that start
    more than one copy. repository: the flag that names a repository of the hub, as OWNER/NAME[:QUANTISATION]; "" where the model
    itself is one. repository_file: the flag that names a file there. revisions: flags with the model's revision. files: flags that
    name a file which the recipe's author had. further_models: flags that name another model, with the key of their JSON that does, ""
    where the flag itself does. downloads: flags about downloading, each with what does it here. tokens: flags that carry a token of the hub.
    spelled_out: the words of a command with short options under their long names. one_dash: its reader takes options with one
    dash itself. served_name: the flag with the names under which clients ask for the model; "" where any name is answered.
    """

    image: str
    port_inside: int
    names: tuple[str, ...]
    program: tuple[str, ...]
    host: str
    key: tuple[str, ...] = ()
    tensor: str = ""
    pipeline: str = ""
    backends: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    repository: str = ""
    repository_file: str = ""
    revisions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    further_models: Mapping[str, str] = field(default_factory=dict)
    downloads: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    spelled_out: Callable[[Sequence[str]], list[str]] = as_they_are
    one_dash: bool = False
    served_name: str = ""
