"""The rows printed by commands that describe hosts. They define the commands' tables, the schema of `--json`, and the API.

They are separate from the tables, so that `--json` does not import the code that draws tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.errors import Exit

#: states of a host whose server answers
SERVING_STATES = ("ok", "up")


@dataclass(frozen=True)
class Upstream:
    """A server behind a gateway, for one of the gateway's models.

    Attributes:
        host: name of the server's host
        state: up, draining, maintenance, down or unknown
        running: number of requests in progress
        requests: number of requests since HAProxy last read its files
    """

    host: str
    state: str
    running: int
    requests: int


@dataclass(frozen=True)
class RoutedModel:
    """A model behind a gateway.

    Attributes:
        requests: number of requests since HAProxy last read its files
        running: number of requests in progress
        queued: number of requests now waiting in the gateway
        errors: number of errors since HAProxy last read its files
        on_demand: true if the model's servers may be asleep
    """

    model: str
    requests: int
    running: int
    queued: int
    errors: int
    servers: list[Upstream]
    on_demand: bool = False


@dataclass(frozen=True)
class GatewayRow:
    """The gateway on a host.

    Attributes:
        name: name of the group
        state: up, degraded (a model has no server, or the gateway's files were changed), down or unknown
        models: the routed models, with HAProxy's counts
    """

    name: str
    port: int
    state: str
    why: str = ""
    models: list[RoutedModel] = field(default_factory=list)
    exit: int = 0


@dataclass(frozen=True)
class HostStatus:
    """The state of a host. None means unknown.

    Attributes:
        state: a state of health/record.py, `up`, `in progress` or `unreachable`
        drift: fields in which the running server differs from the verified one
        behind: parts of the lock that are not deployed yet ("image", "model"), or "recipe" if the served model is not the
            recipe's
        live: true if the host was queried just now because it has no valid check
        scheduled: true if the host runs scheduled checks
        outdated: reason why the last check is no longer valid
        late: true if the check is overdue
        busy: the run in progress on the host
        interrupted: the interrupted run, and the command that resolves it
        flapping: true if the server alternated between good and bad in the last checks
        error: reason why the host could not be queried
        load_s: seconds of each stage of the server's start
        gateway: the gateway that groups.yml places on this host
    """

    host: str
    state: str
    why: str = ""
    recipe: str = ""
    image: str = ""
    digest: str = ""
    engine_version: str = ""
    model: str = ""
    commit: str = ""
    tok_per_s: float | None = None
    baseline_tok_per_s: float | None = None
    up_s: float | None = None
    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    drift: tuple[str, ...] | None = None
    behind: tuple[str, ...] = ()
    checked_s: float | None = None
    live: bool = False
    scheduled: bool = False
    outdated: str = ""
    late: bool = False
    busy: str = ""
    interrupted: str = ""
    flapping: bool = False
    sandbox: bool = False
    error: str = ""
    exit: int = 0
    load_s: Mapping[str, float] = field(default_factory=dict)
    gateway: GatewayRow | None = None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A host of the inventory."""

    host: str
    #: ssh, local or sandbox
    connection: str
    address: str
    groups: tuple[str, ...] = ()
    #: None if the host has no recipe
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause in a diagnosis."""

    cause: str
    #: found, possible, noted, excluded or unknown
    verdict: str
    evidence: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a host that is slow or down."""

    host: str
    state: str
    summary: str
    fix: str = ""
    #: reason why the host could not be queried, in which case all other fields are empty
    error: str = ""
    exit: Exit = Exit.OK
    #: current decode rate; None if not measured
    tok_per_s: float | None = None
    expected_tok_per_s: float | None = None
    #: source of the expected rate
    expected_by: str | None = None
    container: Mapping[str, Any] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    sandbox: bool = False
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """A summary of a host's scheduled checks."""

    host: str
    #: length of each span, seconds
    span_s: float
    #: number of checks
    checks: int
    #: spans that contain checks, oldest first, each with its worst state and its figures
    spans: tuple[Mapping[str, Any], ...] = ()
    error: str = ""
    exit: Exit = Exit.OK
