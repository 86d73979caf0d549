"""A gateway with its models, servers and clients, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.api_paths import ApiPath
from sparkwright.engines.http import GENERATE, USAGE_KEYS, MetricSample, Task, UsageKeys
from sparkwright.units import MIB

Affinity = Literal["none", "prefix"]

#: model names that need no quotes in the configuration
MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/-]{0,199}")
MODEL_NAME_RULE = "up to 200 letters, digits and . _ : / -, beginning with a letter, a digit or /, without `::`"
#: bytes of a request per token of the longest context: a token has about 4 bytes, and JSON escapes non-ASCII characters
BYTES_PER_TOKEN = 8
#: name of the placeholder server at which requests wait while no other is up; no host can have this name
WAITING_SERVER = ":waiting"
#: suffix of the interim server's name; no server of a host can have it
INTERIM_SUFFIX = "::interim"


def model_name_error(model: str) -> str:
    """Return why a gateway can't route a model with this name; empty if it can."""
    return "" if MODEL_NAME_PATTERN.fullmatch(model) and "::" not in model else f"must consist of {MODEL_NAME_RULE}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The metrics that show the progress of a server's engine."""

    #: URL path of the metrics
    path: str
    #: counters and gauges, at least one of which changes at every step
    moves: tuple[MetricSample, ...]
    #: samples of the running and waiting requests; empty if the engine reports none
    requests: tuple[MetricSample, ...] = ()
    #: number of seconds without a change that are normal while the engine works
    still_s: int = 0


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server behind a gateway."""

    #: name of the host, with the recipe's name if the host has several servers
    name: str
    address: str
    port: int
    #: maximum number of concurrent requests; 0 if unknown, in which case they are not limited
    slots: int
    #: name of the host that may drain the server; empty if it is the same as `name`
    host: str = ""
    #: port of its interim server during a replacement; 0 if it has none
    interim_port: int = 0
    #: metrics of its progress; None if the engine reports none
    progress: Progress | None = None
    #: True if requests for its model may wake it
    wakes: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names in HAProxy of the server and, if it has an `interim_port`, of its interim server."""
        return (self.name, self.name + INTERIM_SUFFIX) if self.interim_port else (self.name,)


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its servers."""

    #: name in requests
    name: str
    upstreams: tuple[Upstream, ...]
    #: context length in tokens; 0 if unknown
    context: int
    #: body of the health check's request
    check_body: str
    #: name of the secret with its servers' API key; empty if they require none
    key: str = ""
    #: task of the health check's request
    task: Task = GENERATE
    #: True if all its servers take turns in memory with others, and may be asleep
    on_demand: bool = False
    #: other names that requests may use
    aliases: tuple[str, ...] = ()
    #: names of its adapters, which are also in `aliases`
    adapters: tuple[str, ...] = ()
    #: names of the probes of additional APIs that its recipe expects to pass
    dialects: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, `name` first."""
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
    """A client with its own key. A limit of 0 means unlimited."""

    name: str
    #: names of the allowed models; empty for all
    models: tuple[str, ...] = ()
    requests_per_minute: int = 0
    concurrent: int = 0
    #: limit of prompt and generated tokens together
    tokens_per_day: int = 0
    #: expiry of its key, in seconds since the epoch; 0 for never
    expires_at_s: int = 0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway. `GatewayFile` documents the fields without a comment."""

    name: str  #: name of its group
    address: str  #: listening address
    port: int  #: port for clients
    control_port: int  #: port for the gateway's hosts
    tls: bool
    keyed: bool  #: True if it requires an API key
    affinity: Affinity
    clients: int
    body_bytes: int
    queue_s: int
    answer_s: int
    check_s: int
    models: tuple[Model, ...]
    paths: tuple[ApiPath, ...]  #: API paths that clients may use
    stuck_s: int = 0  #: seconds without progress after which a server with requests counts as down; 0 for never
    waits: bool = False  #: True if requests wait while no server of a model is up
    named_clients: tuple[Client, ...] = ()  #: clients with their own keys
    usages: tuple[UsageKeys, ...] = USAGE_KEYS  #: fields of its servers' answers that contain the number of tokens


def max_body_bytes(contexts: list[int]) -> int:
    """Return the limit on a request's size in bytes, for the longest context. contexts: context lengths in tokens."""
    return max(MIB, BYTES_PER_TOKEN * max(contexts, default=0))
