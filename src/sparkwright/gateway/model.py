"""The routing of a gateway as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.http import GENERATE, USAGES, Sample, Task, Usage
from sparkwright.units import MIB

Affinity = Literal["none", "prefix"]

#: names of models that can be written into the configuration without quotes
NAME = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/-]{0,199}")
NAME_RULE = "letters, digits and . _ : / -, at most 200, the first a letter, a digit or /; no `::`"
#: bytes of a request for each token of the longest context: a token is some 4 bytes, and JSON escapes what is not ASCII
BYTES_PER_TOKEN = 8
#: placeholder server of a backend, for which requests wait; no host can have this name
WAITING = ":waiting"
#: suffix of the interim server that takes a server's requests while it is replaced; no host's server can have this name
INTERIM = "::interim"


def why_not_a_name(model: str) -> str:
    """Return the reason that a gateway can't route a model of this name, or an empty string if it can."""
    return "" if NAME.fullmatch(model) and "::" not in model else f"needs {NAME_RULE}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The metrics that show that a server's engine works on its requests."""

    #: path of the metrics
    path: str
    #: counters and gauges; at least one changes at every step
    moves: tuple[Sample, ...]
    #: its running and waiting requests; empty if it reports none
    requests: tuple[Sample, ...] = ()
    #: seconds without a change that are normal while it works
    still_s: int = 0


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind a gateway."""

    #: name of its host; with the recipe's name if the host has several servers
    name: str
    address: str
    port: int
    #: requests that it serves at a time; 0 if unknown, and then not limited
    slots: int
    #: host that may drain it; empty if that is `name`
    machine: str = ""
    #: port for an interim server that takes its requests while it is replaced; 0 for none
    interim_port: int = 0
    #: None if its engine reports no progress
    progress: Progress | None = None
    #: a request for its model may wake it
    wakes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names that HAProxy has for it and, if it may have one, for its interim server."""
        return (self.name, self.name + INTERIM) if self.interim_port else (self.name,)


@dataclass(frozen=True, slots=True)
class Model:
    """A model and the servers that serve it."""

    #: name in requests
    name: str
    upstreams: tuple[Upstream, ...]
    #: longest sequence, tokens; 0 if unknown
    context: int
    #: body of the health check's request
    check: str
    #: name of the secret that its servers require; empty for none
    key: str = ""
    #: task that the health check tests
    task: Task = GENERATE
    #: all its servers share memory in turns with others, and may be asleep
    on_demand: bool = False
    #: the other names that requests may use for it
    aliases: tuple[str, ...] = ()
    #: those of its names that are adapters: other answers than the model's own
    adapters: tuple[str, ...] = ()
    #: further APIs that its recipe promises, by the names of their probes
    dialects: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, its own first."""
        return (self.name, *self.aliases)

    @property
    def backend(self) -> str:
        """The name of its HAProxy backend, which can't contain a slash."""
        return self.name.replace("/", "::")


def model_of(backend: str) -> str:
    """Return the name of a backend's model."""
    return backend.replace("::", "/")


@dataclass(frozen=True, slots=True)
class Client:
    """A client with a key of its own. A limit of 0 stands for none."""

    name: str
    #: names of models; empty for all
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0
    concurrent: int = 0
    #: of prompts and answers together
    tokens_per_day: int = 0
    #: expiry of its key, seconds since the epoch
    until_s: int = 0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway; see GatewayFile for what is not explained here."""

    name: str  #: of its group
    address: str  #: listening address
    port: int  #: for clients
    control_port: int  #: for its own hosts
    tls: bool
    keyed: bool  #: requires an API key
    affinity: Affinity
    clients: int
    body_bytes: int
    queue_s: int
    answer_s: int
    check_s: int
    models: tuple[Model, ...]
    paths: tuple[ApiPath, ...]  #: API paths of its servers that clients may use
    stuck_s: int = 0  #: seconds without progress after which a server with requests is down; 0: never
    waits: bool = False  #: requests wait if no server of a model is up
    named: tuple[Client, ...] = ()  #: clients with their own keys, in addition to the one key for all
    usages: tuple[Usage, ...] = USAGES  #: keys that tell the tokens of its servers' answers


def body_bytes(contexts: list[int]) -> int:
    """Return the size of the largest request for the longest of these contexts, bytes."""
    return max(MIB, BYTES_PER_TOKEN * max(contexts, default=0))
