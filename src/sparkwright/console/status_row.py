"""The data that `status` shows about a host, apart from the table so that `--json` draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Upstream:
    """A server of a model behind a gateway."""

    #: name of its host
    host: str
    #: up, drain, maintenance, down or unknown
    state: str
    running: int
    requests: int


@dataclass(frozen=True)
class Routed:
    """A model behind a gateway."""

    model: str
    #: since HAProxy last read its files
    requests: int
    running: int
    #: in the gateway, now
    queued: int
    #: since HAProxy last read its files
    errors: int
    servers: list[Upstream]
    #: True if its servers may be asleep
    on_demand: bool = False


@dataclass(frozen=True)
class GatewayRow:
    """The gateway on a host."""

    #: of its group
    name: str
    port: int
    #: up, degraded (a model has no server, or its files were changed), down or unknown
    state: str
    why: str = ""
    #: as HAProxy counts them
    models: list[Routed] = field(default_factory=list)
    exit: int = 0
    #: True for the sandbox's stand-in, which is not HAProxy
    stand_in: bool = False


@dataclass(frozen=True)
class Row:
    """The state of a host. None means unknown."""

    host: str
    #: a state of health/record.py, `up`, `in progress` or `unreachable`
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
    #: fields in which the running server differs from the verified one
    drift: tuple[str, ...] | None = None
    #: parts of the lock that differ from what runs ("image", "model"), or "recipe" if another model than the recipe's is served
    behind: tuple[str, ...] = ()
    checked_s: float | None = None
    #: True if the row is of this moment, without a valid check
    live: bool = False
    #: True if the host runs scheduled checks
    scheduled: bool = False
    #: reason why the last check is no longer valid
    outdated: str = ""
    #: True if the check is overdue
    late: bool = False
    #: a run that is in progress on the host
    busy: str = ""
    #: a run that was interrupted, and the command that settles it
    interrupted: str = ""
    #: True if the server alternated between good and bad in the last checks
    flapping: bool = False
    sandbox: bool = False
    #: reason why the host could not be asked
    error: str = ""
    exit: int = 0
    #: seconds of each stage of its start
    load_s: Mapping[str, float] = field(default_factory=dict)
    #: the gateway that groups.yml places on this host
    gateway: GatewayRow | None = None
