"""The routing of a gateway as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.http import GENERATE, USAGES, MetricSample, Task, Usage
from sparkwright.units import MIB

Affinity = Literal["none", "prefix"]

#: names of models that need no quotes in the configuration
MODEL_NAME = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/-]{0,199}")
MODEL_NAME_RULE = "letters, digits and . _ : / -, at most 200, the first a letter, a digit or /; no `::`"
#: size of a request in bytes per token of the longest context, because a token has some 4 bytes and JSON escapes non-ASCII
BYTES_PER_TOKEN = 8
#: placeholder server of a backend that requests wait for, which is a name that no host can have
WAITING_SERVER = ":waiting"
#: suffix for the interim server that takes a server's requests while it is replaced, which no host's server can have
INTERIM_SUFFIX = "::interim"


def check_model_name(model: str) -> str:
    """Return the reason why a gateway can't route a model with this name; empty if it can."""
    return "" if MODEL_NAME.fullmatch(model) and "::" not in model else f"needs {MODEL_NAME_RULE}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The metrics that show that a server's engine makes progress with its requests."""

    #: path of the metrics
    path: str
    #: counters and gauges, at least one of which changes at every step
    moves: tuple[MetricSample, ...]
    #: samples of the running and waiting requests; empty if it reports none
    requests: tuple[MetricSample, ...] = ()
    #: number of seconds without a change that is normal while it works
    still_s: int = 0


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind a gateway."""

    #: name of the host, with the recipe's name if the host has several servers
    name: str
    address: str
    port: int
    #: number of requests that it serves at once; 0 if unknown, in which case they are not limited
    slots: int
    #: name of the host that may drain it; empty if that is `name`
    machine: str = ""
    #: port for an interim server that takes its requests while it is replaced; 0 for none
    interim_port: int = 0
    #: its metrics; None if the engine reports no progress
    progress: Progress | None = None
    #: True if a request for its model may wake it
    wakes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """HAProxy's names for it and for its interim server, if it may have one."""
        return (self.name, self.name + INTERIM_SUFFIX) if self.interim_port else (self.name,)


@dataclass(frozen=True, slots=True)
class Model:
    """A model and the servers that serve it."""

    #: name in requests
    name: str
    upstreams: tuple[Upstream, ...]
    #: context length in tokens; 0 if unknown
    context: int
    #: body of the health check's request
    check: str
    #: name of the secret that its servers require; empty for none
    key: str = ""
    #: task that the health check tests
    task: Task = GENERATE
    #: True if all its servers take turns in memory with others, and may be asleep
    on_demand: bool = False
    #: other names that requests may use for it
    aliases: tuple[str, ...] = ()
    #: names of it that are adapters, whose answers differ from the model's
    adapters: tuple[str, ...] = ()
    #: additional APIs that its recipe promises, by the names of their probes
    dialects: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, its own first."""
        return (self.name, *self.aliases)

    @property
    def backend(self) -> str:
        """The name of its HAProxy backend, which can't contain a slash."""
        return self.name.replace("/", "::")


def model_name(backend: str) -> str:
    """Return the name of a backend's model."""
    return backend.replace("::", "/")


@dataclass(frozen=True, slots=True)
class Client:
    """A client with a key of its own. A limit of 0 stands for none."""

    name: str
    #: names of the allowed models; empty for all
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0
    concurrent: int = 0
    #: limit on the tokens of prompts and answers together
    tokens_per_day: int = 0
    #: expiry of its key, in seconds since the epoch
    until_s: int = 0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway. The fields without a comment are explained in `GatewayFile`."""

    name: str  #: name of its group
    address: str  #: listening address
    port: int  #: port for clients
    control_port: int  #: port for its own hosts
    tls: bool
    keyed: bool  #: True if it requires an API key
    affinity: Affinity
    clients: int
    body_bytes: int
    queue_s: int
    answer_s: int
    check_s: int
    models: tuple[Model, ...]
    paths: tuple[ApiPath, ...]  #: API paths of its servers that clients may use
    stuck_s: int = 0  #: seconds without progress after which a server with requests counts as down; 0 for never
    waits: bool = False  #: True if requests wait while no server of a model is up
    named: tuple[Client, ...] = ()  #: clients with their own keys, in addition to the one key for all
    usages: tuple[Usage, ...] = USAGES  #: keys for the number of tokens in its servers' answers


def max_body_bytes(contexts: list[int]) -> int:
    """Return the size in bytes of the largest request for the longest of these contexts."""
    return max(MIB, BYTES_PER_TOKEN * max(contexts, default=0))
