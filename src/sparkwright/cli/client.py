"""The command `client`: how a program reaches a host's server, from what runs there now."""

from __future__ import annotations

from invoke.tasks import task

from sparkwright.app.outcome import reporting, worst


@task(
    help={
        "host": "which host or hosts",
        "json": "one object a host: base_url, model, context_length, max_tokens ...",
        "debug": "show the traceback of an error",
    }
)
@reporting
def client(context: object, host: str = "", json: bool = False, debug: bool = False) -> int:
    """Print the settings for a client of a host's server: address, model, context length, key."""
    from sparkwright.app.connect import reach

    chosen = reach(host)
    from sparkwright.app.questions import client_settings  # imported while the connections open

    return worst(client_settings.show(chosen, json=json))


TASKS = [client]
