"""The panel at the end of a run, which describes the running server and how clients reach it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines.http import GENERATE
from sparkwright.program import rewrite_commands
from sparkwright.protocol.events import Event

#: module that records the last verified state, and the field of its diff that is present if the server is a different one
GRANT_MODULE, LAST_GOOD_FIELD = "grant_restart", "last good state"
#: modules that check that the server answers
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
    #: True if the recipe has a probe with a picture
    pictures: bool = False
    #: version of the engine; empty if unknown
    engine_version: str = ""
    #: name of the cluster if this host is its head; otherwise empty
    cluster: str = ""
    #: members of the cluster
    members: tuple[str, ...] = ()
    #: True if the run checked that the server answers
    proved: bool = False
    #: True if the run succeeded and the server was proved
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
        self._served: dict[str, ServerSummary] = {}
        self._failed_hosts: set[str] = set()
        self._write = write

    def set_server(self, served: ServerSummary) -> None:
        """Set the server that a host will run, before its run begins."""
        self._served[served.host] = served

    def on(self, event: Event) -> None:
        if event["event"] == "recap" and event["exit"]:
            self._failed_hosts.add(event["host"])
        served = self._served.get(event.get("host", ""))
        if served is None:
            return
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed"):
            self._update_server(served, event["module"], event["data"])
            served.proved |= event["module"] in PROOF_MODULES and event["data"].get("serves") is not False
            served.new |= event["module"] == GRANT_MODULE and any(
                row["field"] == LAST_GOOD_FIELD for row in event.get("diff", ())
            )
        elif event["event"] == "recap":
            served.done = event["exit"] == 0 and served.proved

    def close(self) -> None:
        for served in self._served.values():
            if served.done and not self._failed_hosts.intersection(served.members):
                self._print_panel(served)

    @staticmethod
    def _update_server(served: ServerSummary, module: str, data: dict[str, Any]) -> None:
        version = data.get("version") or data.get("engine_version")
        if module in ("docker_image", "verify_health", "liveness") and isinstance(version, str):
            served.engine_version = version
        if module == "verify_health" and isinstance(data.get("max_model_len"), int):
            served.max_model_len = data["max_model_len"]

    def _print_panel(self, served: ServerSummary) -> None:
        host = served.cluster or served.host
        engine = (
            f"{served.engine} {served.engine_version}" if served.engine_version else f"{served.engine}, version unknown"
        )
        self._write("title", f"{host} serves {served.served_name} ({engine}) at {served.url}/v1")
        if served.adapters:
            self._print_row("adapters", ", ".join(served.adapters))
        if served.reach:
            self._print_row("reach", served.reach)
        if served.new and served.key_variable:
            self._print_row("key", f"${served.key_variable}: the server's key (`server_key` in the recipe)")
        if served.new:
            self._print_row("client", rewrite_commands(f"`invoke client --host {host}` prints client settings"))
        if served.warning:
            self._print_row("warning", served.warning, "fix")

    def _print_row(self, label: str, value: str, style: str = "") -> None:
        self._write(style, f"  {label:<8} {value}")
