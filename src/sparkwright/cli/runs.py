"""The commands for runs on a host: follow, stop and list them, release the lock, and show history and incidents."""

from __future__ import annotations

from typing import Any

from sparkwright.app.prompts import ask_lock_release
from sparkwright.cli.framework.command import command
from sparkwright.defaults import HISTORY_ENTRIES
from sparkwright.errors import Refused


@command(help={"run": "the run's id (default: the newest in progress, or else the newest)"})
def attach(host: str = "", run: str = "", json: bool = False) -> list[int]:
    """Follow a run again, from its first event.

    Use it after a lost connection, or from another laptop. Ctrl-C asks whether to stop the run or to leave it running.
    """
    return _query_hosts(host, {"verb": "attach", "run": run}, json=json)


@command(help={"run": "the run's id (default: the run in progress)"})
def stop(host: str = "", run: str = "", json: bool = False) -> list[int]:
    """Stop a run at the next safe point.

    If the run has already stopped the previous server, that server is restored.
    """
    return _query_hosts(host, {"verb": "stop", "run": run}, json=json)


@command(help={"all": "include runs that only read, such as `verify` and plans"})
def runs(host: str = "", all: bool = False, json: bool = False) -> list[int]:
    """List the runs that may have changed a host, newest first."""
    from sparkwright.app.connect import select_hosts, select_machines
    from sparkwright.app.runs import session

    return session.list_runs(select_machines(select_hosts(host)), include_read_only=all, json=json)


@command(
    help={"json": "one JSON object per change", "last": f"number of changes per server (default {HISTORY_ENTRIES})"}
)
def history(host: str = "", recipe: str = "", last: int = HISTORY_ENTRIES, json: bool = False) -> list[int]:
    """List the changes to the servers of hosts, newest first.

    Shows who made each change, when, what differed, and the measurements of its verification.
    """
    from sparkwright.app.connect import restrict_to_recipe
    from sparkwright.app.queries import host_records

    return host_records.history(restrict_to_recipe(host, recipe), last, json=json)


@command(
    help={
        "run": "the run that failed (default: the newest incident)",
        "to": "the folder to write to, with a subfolder per host if there are several (default: incidents/HOST/RUN)",
        "json": "one JSON object per host: its incident, the folder, the files",
    }
)
def incident(host: str = "", recipe: str = "", run: str = "", to: str = "", json: bool = False) -> list[int]:
    """Download the diagnostics of a failed server.

    These are the log, Docker's inspect data, memory, kernel messages, the plan and the events. They are collected when a run
    fails, and when a health check or the memory guard stops the server. Exit code 1 if there are none.
    """
    from sparkwright.app.connect import restrict_to_recipe
    from sparkwright.app.queries import host_records

    return host_records.incident(restrict_to_recipe(host, recipe), run, to, json=json)


@command(
    help={
        "host": "one host",
        "stop": "do not ask: stop its run at the next safe point",
        "kill": "do not ask: kill its run; the next deploy resumes it",
    }
)
def unlock(host: str = "", stop: bool = False, kill: bool = False) -> int:
    """Show who holds a host's lock, and release it.

    Asks whether to stop the run that holds it, kill that run, or leave the lock; or, if that run is gone, whether to clear it.
    """
    from sparkwright.app.queries import host_records

    if stop and kill:
        raise Refused("--stop and --kill can't be combined.")
    action = "stop" if stop else "kill" if kill else ""
    return host_records.unlock(host, lambda owner, name: action or ask_lock_release(owner, name))


def _query_hosts(pattern: str, header: dict[str, Any], *, json: bool) -> list[int]:
    from sparkwright.app.connect import select_hosts, select_machines
    from sparkwright.app.runs import session

    return session.send_request(select_machines(select_hosts(pattern)), header, json=json)


TASKS = {"": [attach, stop, runs, history, incident, unlock]}
