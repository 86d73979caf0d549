"""The panel at the end of a run, which describes the running server and how clients reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.http import GENERATE
from sparkwright.program import rewrite_commands
from sparkwright.protocol.events import Event

#: module that records the last verified state
GRANT_MODULE = "grant_restart"
#: field of that module's diff that is present if the server differs from the previous one
LAST_GOOD_FIELD = "last good state"
#: modules whose success verifies that a host serves, unless their data contains `serves: False`
PROOF_MODULES = ("verify_health", "liveness")


@dataclass
class ServerSummary:
    """The server of a host, gathered from the results of its tasks."""

    host: str
    recipe: str
    image: str
    model: str
    commit: str
    served_name: str
    #: URL for requests from the laptop
    url: str
    #: names of the LoRA adapters for requests
    adapters: tuple[str, ...] = ()
    #: context length in tokens; None if unknown
    max_model_len: int | None = None
    #: hint on how to reach the URL; empty if none is needed
    reach: str = ""
    #: environment variable from which clients read the key; empty if none is needed
    key_variable: str = ""
    #: warning for clients; empty if there is none
    warning: str = ""
    #: title of the engine
    engine: str = "vLLM"
    #: the task, an `engines.http.Task`
    task: str = GENERATE
    #: True if the recipe has a probe that sends a picture
    pictures: bool = False
    #: version of the engine; empty if unknown
    engine_version: str = ""
    #: name of the cluster if this host is its head; otherwise empty
    cluster: str = ""
    #: members of the cluster
    members: tuple[str, ...] = ()
    #: True if the run checked that the server answers
    proved: bool = False
    #: True if the run succeeded and checked that the server answers
    done: bool = False
    #: True if the server differs from the previous one, so that clients may need other settings
    new: bool = False
    #: chat template and sampling defaults from the lock, see `engines.model.chat_template.select_server_chat`
    chat: dict[str, Any] = field(default_factory=dict)


class Summary:
    """A subscriber that prints the panel.

    Args:
        write: called with the style and the text of a line.
    """

    def __init__(self, write: Callable[[str, str], None]) -> None:
        self._servers: dict[str, ServerSummary] = {}
        self._failed_hosts: set[str] = set()
        self._write = write

    def set_server(self, server: ServerSummary) -> None:
        """Set the server that a host will run, before its run begins."""
        self._servers[server.host] = server

    def on(self, event: Event) -> None:
        if event["event"] == "recap" and event["exit"]:
            self._failed_hosts.add(event["host"])
        server = self._servers.get(event.get("host", ""))
        if server is None:
            return
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed"):
            self._update_server(server, event["module"], event["data"])
            server.proved |= event["module"] in PROOF_MODULES and event["data"].get("serves") is not False
            server.new |= event["module"] == GRANT_MODULE and any(
                row["field"] == LAST_GOOD_FIELD for row in event.get("diff", ())
            )
        elif event["event"] == "recap":
            server.done = event["exit"] == 0 and server.proved

    def close(self) -> None:
        for server in self._servers.values():
            if server.done and not self._failed_hosts.intersection(server.members):
                self._print_panel(server)

    @staticmethod
    def _update_server(server: ServerSummary, module: str, data: dict[str, Any]) -> None:
        version = data.get("version") or data.get("engine_version")
        if module in ("docker_image", "verify_health", "liveness") and isinstance(version, str):
            server.engine_version = version
        if module == "verify_health" and isinstance(data.get("max_model_len"), int):
            server.max_model_len = data["max_model_len"]

    def _print_panel(self, server: ServerSummary) -> None:
        host = server.cluster or server.host
        engine = (
            f"{server.engine} {server.engine_version}" if server.engine_version else f"{server.engine}, version unknown"
        )
        self._write("title", f"{host} serves {server.served_name} ({engine}) at {server.url}/v1")
        if server.adapters:
            self._print_row("adapters", ", ".join(server.adapters))
        if server.reach:
            self._print_row("reach", server.reach)
        if server.new and server.key_variable:
            self._print_row("key", f"${server.key_variable}: the server's key (`server_key` in the recipe)")
        if server.new:
            self._print_row("client", rewrite_commands(f"`invoke client --host {host}` prints client settings"))
        if server.warning:
            self._print_row("warning", server.warning, "fix")

    def _print_row(self, label: str, value: str, style: str = "") -> None:
        self._write(style, f"  {label:<8} {value}")
