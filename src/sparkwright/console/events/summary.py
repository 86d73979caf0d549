"""The panel at the end of a run: the running server, its proofs, and for a new server the settings of a client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkwright.console import words
from sparkwright.engines.http import GENERATE
from sparkwright.engines.model import chat_template
from sparkwright.protocol.events import Event

#: the module that records the last verified state, and the field of its diff for a different server
GRANT, LAST_GOOD = "grant_restart", "last good state"
PROOFS = (
    "verify_health",
    "probes",
    "liveness",
    "gpu_used",
    "verify_logs",
    "smoke_test",
    "depth_rates",
    "reference_text",
)
#: verdicts of a check that proved nothing
OPEN = ("off", "not asked for", "unknown", "not compared", "doubtful", "inconclusive")


@dataclass
class Served:
    """The server of a host, gathered from the results of its tasks."""

    host: str
    recipe: str
    image: str
    model: str
    commit: str
    served_name: str
    #: as the laptop reaches it
    url: str
    #: context length in tokens; None if unknown
    max_model_len: int | None = None
    #: how to reach the URL; empty if nothing is needed
    reach: str = ""
    #: the client's variable for the server's key; empty if it needs no key
    key_variable: str = ""
    #: a warning for its user
    warning: str = ""
    #: title of the engine
    engine: str = "vLLM"
    #: an engines.http.Task
    task: str = GENERATE
    #: True if the recipe has a probe with a picture
    pictures: bool = False
    engine_version: str = ""
    #: the cluster whose head the host is
    cluster: str = ""
    #: members of the cluster, which serve together
    members: tuple[str, ...] = ()
    #: by module, so that only the proof of the last start counts
    proved: dict[str, str] = field(default_factory=dict)
    done: bool = False
    #: True if the server differs from the previous one: clients may need other settings
    new: bool = False
    #: the lock's facts about chat template and sampling, see engines.model.chat_template.kept
    chat: dict[str, Any] = field(default_factory=dict)


class Summary:
    """A subscriber that prints the panel.

    Args:
        snippet: renders templates/client.j2 for a host.
        write: called with the style and the text of a line.
    """

    def __init__(self, snippet: Callable[[Served], str], write: Callable[[str, str], None]) -> None:
        self._served: dict[str, Served] = {}
        self._bad: set[str] = set()
        self._snippet = snippet
        self._write = write

    def serves(self, served: Served) -> None:
        """Set the server that a host is going to run, before its run begins."""
        self._served[served.host] = served

    def on(self, event: Event) -> None:
        if event["event"] == "recap" and event["exit"]:
            self._bad.add(event["host"])
        served = self._served.get(event.get("host", ""))
        if served is None:
            return
        if event["event"] == "task_finished" and event["status"] in ("ok", "changed"):
            self._learn(served, event["module"], event["msg"], event["data"])
            served.new |= event["module"] == GRANT and any(row["field"] == LAST_GOOD for row in event.get("diff", ()))
        elif event["event"] == "recap":
            served.done = event["exit"] == 0 and bool(served.proved)

    def close(self) -> None:
        for served in self._served.values():
            if served.done and not self._bad.intersection(served.members):
                self._panel(served)

    @staticmethod
    def _learn(served: Served, module: str, msg: str, data: dict[str, Any]) -> None:
        version = data.get("version") or data.get("engine_version")
        if module in ("docker_image", "verify_health", "liveness") and isinstance(version, str):
            served.engine_version = version
        if module == "verify_health" and isinstance(data.get("max_model_len"), int):
            served.max_model_len = data["max_model_len"]
        if module in PROOFS and msg and data.get("serves") is not False and data.get("verdict") not in OPEN:
            served.proved[module] = msg

    def _panel(self, served: Served) -> None:
        self._write("", "")
        self._write("title", f"{served.cluster or served.host} serves {served.served_name}  ({served.recipe})")
        rows = [
            ("image", words.short(served.image)),
            ("model", f"{served.model} @ {served.commit[:12]}" if served.commit else served.model),
            ("engine", f"{served.engine} {served.engine_version}" if served.engine_version else "version unknown"),
            *((label, text) for label, text in chat_template.lines(served.chat) if label in ("thinking", "sampling")),
            *(("proved", proof) for proof in served.proved.values()),
            *([("reach", served.reach)] if served.reach else []),
        ]
        for name, value in rows:
            self._write("", f"  {name:<8} {value}")
        if served.warning:
            self._write("fix", f"  {'warning':<8} {served.warning}")
        if not served.new:
            return
        self._write("", "")
        for line in self._snippet(served).splitlines():
            self._write("muted", f"  {line}")
