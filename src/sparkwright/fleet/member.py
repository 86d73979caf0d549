"""A host in a run, with its connection, its registered results and its outcome."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.console.events.summary import PROOF_MODULES
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan
from sparkwright.remote import Link, RequestKind, open_link
from sparkwright.secret import Secret
from sparkwright.trust import bounds
from sparkwright.trust.names import VERSION
from sparkwright.trust.shapes import check_engine_options

SUCCESS_CODES = (Exit.OK, Exit.CHANGES)


@dataclass
class Member:
    """A host in a run, with its connection, its registered results and its outcome."""

    host: Host
    secrets: dict[str, Secret] = field(default_factory=dict)
    #: connection, which stays open for the whole command; None before the first request
    link: Link | None = None
    #: results that tasks have registered
    registered: dict[str, Any] = field(default_factory=dict)
    #: combined recap of its plays; None before the first
    recap: Event | None = None
    #: id of the last run
    run_id: str = ""
    #: restart plan to send with the next plan (see app/plans/server_context.py); empty if it could not be built
    restart: dict[str, Any] | None = None
    #: version of the engine, if a task read it from the image; otherwise empty
    engine_version: str = ""
    #: options of the engine, if a task read them from the image; otherwise None
    engine_options: dict[str, Any] | None = None
    #: True if a task has verified that the host serves
    is_verified: bool = False
    #: kind of requests for which the connection is opened
    request_kind: RequestKind = "engine"
    #: notes about the host that were already shown
    shown_notes: set[str] = field(default_factory=set)

    @property
    def exit_code(self) -> Exit | None:
        """The exit code of the member's recap; None without a recap."""
        return None if self.recap is None else Exit(self.recap["exit"])

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, *SUCCESS_CODES)

    def open(self) -> Link:
        """Return the link, and start to connect in the background if it is not open."""
        if self.link is None:
            self.link = open_link(self.host, self.request_kind)
        return self.link

    def request(self, header: Mapping[str, Any], secrets: Mapping[str, Secret] | None = None) -> Iterator[Event]:
        """Send a request and yield the events of the response. Raises Unreachable.

        Args:
            secrets: the secrets to send; None for the member's own.
        """
        secrets_to_send = self.secrets if secrets is None else secrets
        server_field = {"server": self.host.server} if self.host.server else {}
        host_fields = {"host": self.host.name, **server_field, "env": dict(self.host.env)}
        return self.open().request({**header, **host_fields}, secrets_to_send)

    def store_results(self, event: Event) -> None:
        """Store what a finished task reports: the engine's version and options, whether the host serves, registered results."""
        data = event.get("data") or {}
        version = data.get("engine_version")
        if isinstance(version, str) and VERSION.fullmatch(version):
            self.engine_version = version
        with contextlib.suppress(ValueError):  # the options are invalid
            self.engine_options = check_engine_options(data.get("options")) or self.engine_options
        if event["module"] in PROOF_MODULES and event["status"] == "ok" and data.get("serves") is not False:
            self.is_verified = True
        if event.get("register"):
            self.registered[event["register"]] = event["registered"]


def close_links(members: Iterable[Member]) -> None:
    """Close the connections of members."""
    for member in members:
        link = member.link  # another thread may set it to None at the same time
        if link is not None:
            link.close()


def build_run_request(member: Member, plan: Plan) -> dict[str, Any]:
    """Return the request that runs a plan on a member, including its restart plan."""
    restart = {} if member.restart is None or plan.check else {"restart": member.restart}
    return {"verb": "run", "plan": plan.to_json(), **restart}


def build_module_request(module: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that runs a module in check mode; see runner/check_requests.py."""
    return {"verb": "ask", "module": module, "args": dict(args)}


def convert_error(error: Exception) -> SparkwrightError:
    """Convert an exception to an error with a message for the user. For an internal error, it includes file and line."""
    if isinstance(error, SparkwrightError):
        return error
    if message := bounds.describe_os_error(error):
        return SparkwrightError(message)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return SparkwrightError(f"internal error: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}).")
