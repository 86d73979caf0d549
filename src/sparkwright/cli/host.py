"""`invoke host.clean`."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright.app.outcome import reporting


@task(
    help={
        "host": "which hosts",
        "server": "remove the server's container too",
        "models": "remove the model's files too",
        "images": "remove the server's images too",
        "check": "list only: exits with 2",
        "yes": "do not ask",
        "json": "one object a host: what is there, and what was freed (null: nothing was removed)",
        "debug": "show the traceback of an error",
    }
)
@reporting
def clean(
    context: object,
    host: str = "",
    server: bool = False,
    models: bool = False,
    images: bool = False,
    check: bool = False,
    yes: bool = False,
    json: bool = False,
    debug: bool = False,
) -> int:
    """List everything sparkwright put on a host with its size, ask, and remove it. The server keeps running.

    Removed: the runtime, state and journals, the health timer, run scripts, previous containers kept for a rollback, server keys
    that nothing mounts, and files kept beside models. Refused (exit code 5) while a run is under way on the host.
    """
    from sparkwright.app import clean_host

    scope = clean_host.Scope(server=server, models=models, images=images)
    return clean_host.clean(host, scope, check=check, yes=yes, json=json)


def host_collection() -> Collection:
    """`invoke host.clean`."""
    return Collection(clean)
