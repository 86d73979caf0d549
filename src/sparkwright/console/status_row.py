"""What `status` shows of a host. Apart from the table, so that `--json` draws nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Upstream:
    """A server of a model behind a gateway. host: its name. state: up, drain, maintenance, down or unknown."""

    host: str
    state: str
    running: int
    requests: int


@dataclass(frozen=True)
class Routed:
    """A model behind a gateway. requests, errors: since HAProxy last read its files. queued: in the gateway, now. on_demand: its
    servers may be asleep.
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
    """The gateway on a host. name: its group's. state: up, degraded (a model has no server, or its files were changed), down or
    unknown. models: as HAProxy counts. stand_in: it is the sandbox's stand-in, and not HAProxy.
    """

    name: str
    port: int
    state: str
    why: str = ""
    models: list[Routed] = field(default_factory=list)
    exit: int = 0
    stand_in: bool = False


@dataclass(frozen=True)
class Row:
    """A host now. None: not known.

    state: of health/record.py, `up`, `in progress` or `unreachable`. live: of this moment alone, no check speaks for it;
    outdated: why the last one does not. flapping: it comes and goes. load_s: seconds of each stage of
    its start. scheduled: the host checks itself. drift: what
    differs, field by field; behind: what of the lock is not what runs ("image", "model"), or "recipe": another model serves than
    the recipe's. busy: who works there. interrupted: a run that was cut off, and what settles it. error: why the host could not
    be asked. gateway: the one that groups.yml puts there.
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
