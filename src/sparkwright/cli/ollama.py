"""The commands about Ollama on a host: what it holds of the shared memory, and letting it go."""

from __future__ import annotations

from typing import Any

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst

HELP = {"host": "which host or hosts", "json": "events as JSON lines", "debug": "show the traceback of an error"}


@task(help=HELP)
@reporting
def ps(context: object, host: str = "", json: bool = False, debug: bool = False) -> int:
    """List the models that Ollama holds in memory, and what it runs as. Touches nothing."""
    return _run(host, "ollama_ps", {}, read_only=True, json=json)


@task(help={**HELP, "timeout-s": "how long a busy model may take to end its request, seconds"})
@reporting
def unload(context: object, host: str = "", timeout_s: float = 60.0, json: bool = False, debug: bool = False) -> int:
    """Unload every model of every Ollama on the host; Ollama stays up."""
    return _run(host, "ollama_unload", {"timeout_s": timeout_s}, read_only=False, json=json)


def _run(host: str, module: str, args: dict[str, Any], *, read_only: bool, json: bool) -> int:
    from sparkwright.app import session
    from sparkwright.app.connect import choose

    return worst(session.one_task(choose(host), module, args, read_only=read_only, json=json))


def ollama_collection() -> Collection:
    """`invoke ollama.ps`, `invoke ollama.unload`."""
    return Collection(ps, unload)
