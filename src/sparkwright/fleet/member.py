"""A host of a run: its link, and what its plays registered and ended with."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.errors import Exit, SparkwrightError
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan
from sparkwright.remote import Link, Need, open_link
from sparkwright.secret import Secret
from sparkwright.trust import bounds
from sparkwright.trust.names import VERSION
from sparkwright.trust.shapes import engine_options

GOOD = (Exit.OK, Exit.CHANGES)
#: the modules whose success means that a host serves, unless their data says otherwise
PROOFS = ("verify_health", "liveness")


@dataclass
class Member:
    """A host of a run, with its connection and what its plays registered."""

    host: Host
    secrets: dict[str, Secret] = field(default_factory=dict)
    #: kept open for the command
    link: Link | None = None
    #: of all its plays
    registered: dict[str, Any] = field(default_factory=dict)
    #: of all its plays
    recap: Event | None = None
    run_id: str = ""
    #: the restart plan that is sent with the next plan (see app/plans/server_context.py); empty: none could be made
    restart: dict[str, Any] | None = None
    #: read from the image by a task of its plays; empty if none did
    engine_version: str = ""
    #: read from the image by a task of its plays; empty if none did
    engine_options: dict[str, Any] | None = None
    #: it was seen to serve
    proved: bool = False
    #: the kind of requests to come
    need: Need = "engine"
    #: notes about it that were already shown
    noted: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return self.recap is not None and self.recap["exit"] not in GOOD

    def open(self) -> Link:
        """Return the link; connecting continues in the background while the laptop still plans."""
        if self.link is None:
            self.link = open_link(self.host, self.need)
        return self.link

    def request(self, header: Mapping[str, Any], secrets: Mapping[str, Secret] | None = None) -> Iterator[Event]:
        """Send a request and yield the events of its answer. secrets: instead of the member's own. Raises Unreachable."""
        given = self.secrets if secrets is None else secrets
        about = {"server": self.host.server} if self.host.server else {}
        return self.open().request({**header, **about, "env": dict(self.host.env)}, given)

    def learn(self, event: Event) -> None:
        """Keep what the next play needs of a finished task."""
        data = event.get("data") or {}
        version = data.get("engine_version")
        if isinstance(version, str) and VERSION.fullmatch(version):
            self.engine_version = version
        with contextlib.suppress(ValueError):  # no valid options
            self.engine_options = engine_options(data.get("options")) or self.engine_options
        self.proved |= event["module"] in PROOFS and event["status"] == "ok" and data.get("serves") is not False
        if event.get("register"):
            self.registered[event["register"]] = event["registered"]


def hang_up(members: Iterable[Member]) -> None:
    """Close the connections of these hosts."""
    for member in members:
        link = member.link  # a thread that asks may drop it meanwhile
        if link is not None:
            link.close()


def run_request(member: Member, plan: Plan) -> dict[str, Any]:
    """Return the request that runs a plan on a member, with its restart plan."""
    extra = {} if member.restart is None or plan.check else {"restart": member.restart}
    return {"verb": "run", "plan": plan.to_json(), **extra}


def question(module: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request for the answer of a module, see runner/questions.py."""
    return {"verb": "ask", "module": module, "args": dict(args)}


def broke(error: Exception) -> SparkwrightError:
    """Return an error as a sentence; an internal error says where it occurred."""
    if isinstance(error, SparkwrightError):
        return error
    if sentence := bounds.sentence(error):
        return SparkwrightError(sentence)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return SparkwrightError(f"internal error: {type(error).__name__}: {error} ({place.filename}:{place.lineno}).")
